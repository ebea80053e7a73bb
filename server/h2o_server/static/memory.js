// The memory view: which tokens of the last prompt each layer still held after each chunk.

import { get, serverError } from "./api.js";
import { byId, element } from "./dom.js";
import { count, counted } from "./format.js";
import { MemoryMap } from "./memory_map.js";
import { STEPS, stepOf, TokenText } from "./memory_text.js";

export class MemoryPanel {
  constructor() {
    this._panel = byId("memory");
    this._layer = byId("layer");
    this._boundary = byId("boundary");
    this._text = new TokenText(byId("tokens"), (index) => this._tell(index));
    this._map = new MemoryMap(byId("memory-map"), (index) => this._text.goTo(index));
    this._opener = null;
    this._forget();
    for (const slider of [this._layer, this._boundary]) slider.oninput = () => this._draw();
    byId("close-memory").onclick = () => this.close();
  }

  /** Show what the prompt of `answer` (see Turn.result) left behind. */
  async open(answer) {
    this._opener = document.activeElement;
    this._panel.hidden = false;
    await this._load(answer);
    byId("memory-title").focus();
  }

  /** A newer answer is there: an open panel shows its prompt. */
  follow(answer) {
    if (!this._panel.hidden) this._load(answer);
  }

  close() {
    if (this._panel.hidden) return;
    this._panel.hidden = true;
    this._forget();
    this._text.clear();
    if (this._opener?.isConnected) this._opener.focus();
  }

  _forget() {
    this._answer = null;
    this._memory = null; // as GET /memory/{id} describes it
    this._known = new Map(); // "boundary,layer" → counts
    this._shown = null; // counts on display
  }

  async _load(answer) {
    if (this._answer === answer) return;
    this._forget();
    this._answer = answer;
    const why = answer.h2o?.exact ? FULL : null;
    const memory = why ? null : await this._ask("");
    if (this._answer !== answer || (!why && !memory)) return;
    if (why || !memory.boundaries) {
      this._note(why ?? nothingToShow(memory));
      return;
    }
    this._memory = memory;
    this._begin();
    await this._draw();
    await this._text.show(memory.tokens, this._borders, chunkNames(memory, this._borders));
  }

  /** GET something of this answer's memory; null when there is none, which the panel then says. */
  async _ask(what) {
    const answer = this._answer;
    try {
      return await get(`memory/${encodeURIComponent(answer.id)}${what}`);
    } catch (error) {
      const { status, message } = serverError(error);
      if (this._answer === answer) this._note(status === 404 ? GONE : message);
      return null;
    }
  }

  _note(sentence) {
    byId("memory-note").textContent = sentence;
    byId("memory-note").hidden = false;
    byId("memory-view").hidden = true;
  }

  _begin() {
    const { boundaries, layers, heads } = this._memory;
    byId("memory-note").hidden = true;
    byId("memory-view").hidden = false;
    this._layer.max = layers - 1;
    this._layer.value = Math.min(this._layer.value, layers - 1); // the layer looked at before, where there is one
    this._boundary.max = boundaries - 1;
    this._boundary.value = boundaries - 1;
    this._boundary.disabled = boundaries === 1;
    this._borders = [...new Set(this._memory.ends)]; // between chunks, which several boundaries can share
    this._boundaryNames = boundaryNames(this._memory, this._borders);
    this._layer.disabled = layers === 1;
    byId("legend").replaceChildren(...legend(heads));
    this._tell(null);
  }

  async _draw() {
    const memory = this._memory;
    const [boundary, layer] = [this._boundary, this._layer].map((slider) => Number(slider.value));
    byId("layer-value").textContent = `${layer + 1} of ${memory.layers}`;
    byId("boundary-value").textContent = this._boundaryNames[boundary];
    const counts = await this._counts(boundary, layer);
    const wanted = Number(this._boundary.value) === boundary && Number(this._layer.value) === layer;
    if (!counts || !wanted || this._memory !== memory) return; // the sliders have moved on
    this._shown = counts;
    const end = memory.ends[boundary];
    this._text.shade(counts, memory.heads, end);
    this._map.draw(counts, memory.heads, end, this._borders);
    const kept = counts.reduce((sum, heads) => sum + (heads > 0), 0);
    const summary = `${count(kept)} of the ${counted(end, "token")} read so far are in the memory of at least one head`;
    byId("memory-summary").textContent = `${summary}; each head remembers ${count(memory.memory_size)}.`;
    byId("memory-map").ariaLabel = `Overview: ${summary}.`;
    this._tell(this._text.current);
  }

  async _counts(boundary, layer) {
    const known = this._known;
    const name = `${boundary},${layer}`;
    if (!known.has(name)) {
      const answer = await this._ask(`/counts?boundary=${boundary}&layer=${layer}`);
      if (!answer) return null;
      known.set(name, Uint16Array.from(answer.counts));
    }
    return known.get(name);
  }

  /** Say what is known of one token. */
  _tell(index) {
    const detail = byId("detail");
    if (index === null || !this._shown) {
      detail.textContent = "Point at a token, or tap it.";
      return;
    }
    const { tokens, heads, ends } = this._memory;
    const read = index < ends[Number(this._boundary.value)];
    const kept = read ? `remembered by ${this._shown[index]} of ${counted(heads, "head")}` : "not read yet";
    detail.replaceChildren(
      element("code", { textContent: JSON.stringify(tokens[index]) }),
      ` token ${count(index)} · ${kept}`,
    );
  }
}

const FULL = "Every token of this prompt saw all tokens before it: there was no memory to choose.";
const GONE = "The server keeps the memory of its last answer only, and another one came after this.";

function nothingToShow({ chunks, dense }) {
  if (chunks > 1)
    return "The new part of this conversation fits one chunk, which saw everything before it: nothing was left out.";
  if (dense) return FULL;
  return "This prefill policy has no memory to show.";
}

/** What the parts between the borders are. Where a conversation went on, only the last border is known. */
function chunkNames({ continued }, borders) {
  if (continued) return ["Earlier chunks", "Last chunk"];
  return [...borders, null].map((_, chunk) => `Chunk ${chunk + 1}`);
}

/** Of each boundary: the chunk before it, and who sees this memory where that is only a part of the next chunk. */
function boundaryNames(memory, borders) {
  const chunks = chunkNames(memory, borders);
  return memory.ends.map((end, boundary) => {
    const chunk = borders.indexOf(end);
    const name = chunks[chunk].toLowerCase();
    const next = borders[chunk + 1] ?? memory.tokens.length;
    const [first, last] = memory.seen_by?.[boundary] ?? [end, next - 1];
    return first === end && last === next - 1 ? name : `${name}, for tokens ${count(first)} to ${count(last)}`;
  });
}

/** One swatch for each number of heads, or a few steps where there are many heads. */
function legend(heads) {
  const swatch = (className, text) =>
    element("span", {}, element("i", { className: `swatch ${className}` }), text);
  const swatches = [swatch("", "left out")];
  for (let step = 1; step <= Math.min(heads, STEPS); step++) {
    const upper = Math.floor((step * heads) / Math.min(heads, STEPS));
    swatches.push(swatch(`kept k${stepOf(upper, heads)}`, heads <= STEPS ? `${upper}` : `to ${upper}`));
  }
  return [...swatches, element("span", { textContent: heads === 1 ? "head" : "heads" })];
}
