// A prompt's tokens as text, each shaded by how many heads hold it. Made for tens of thousands of tokens: elements
// are made once and in batches, and only the classes of those that change are touched.

import { breathe, element } from "./dom.js";
import { count } from "./format.js";

export const STEPS = 8; // shades, from one head to all
const BATCH = 2000;
const CLASSES = ["", ...Array.from({ length: STEPS }, (_, step) => `kept k${step + 1}`)];

/** The shade of a token that `kept` of `heads` heads hold; 0 is none. */
export const stepOf = (kept, heads) => Math.ceil((kept * STEPS) / heads);

export class TokenText {
  /** onPoint: told the index of the token that the person points at. */
  constructor(box, onPoint) {
    this._box = box;
    this._onPoint = onPoint;
    this.clear();
    for (const kind of ["pointerover", "click"]) {
      box.addEventListener(kind, (event) => this._point(this._indexOf(event.target)));
    }
    box.addEventListener("keydown", (event) => this._onKey(event));
  }

  clear() {
    this._box.replaceChildren();
    this._chunks = []; // {start, body}
    this._spans = [];
    this._steps = []; // the shade of each span
    this._shading = null; // the last arguments of shade()
    this.current = null; // index of the token pointed at
  }

  /** Show tokens, with a border after each of `ends` and a name above each part. Ends early when something else is
   * shown meanwhile. */
  async show(tokens, ends, names) {
    const { _shading } = this;
    this.clear();
    this._shading = _shading;
    const spans = this._spans;
    const borders = [0, ...ends, tokens.length];
    for (let chunk = 0; chunk + 1 < borders.length; chunk++) {
      const body = this._addChunk(names[chunk], borders[chunk], borders[chunk + 1]);
      for (let start = borders[chunk]; start < borders[chunk + 1]; start += BATCH) {
        const batch = tokens.slice(start, Math.min(start + BATCH, borders[chunk + 1])).map(span);
        spans.push(...batch);
        body.append(...batch);
        if (this._shading) this.shade(...this._shading);
        await breathe();
        if (this._spans !== spans) return;
      }
    }
  }

  /** counts: how many of `heads` heads hold each token, when the first `end` tokens have been read. */
  shade(counts, heads, end) {
    this._shading = [counts, heads, end];
    this._spans.forEach((span, index) => {
      const step = stepOf(counts[index], heads);
      if (step === (this._steps[index] ?? 0)) return;
      this._steps[index] = step;
      span.className = CLASSES[step];
    });
    for (const { start, body } of this._chunks) body.parentElement.classList.toggle("ahead", start >= end);
  }

  /** Bring a token into view and point at it. */
  goTo(index) {
    this._spans[index]?.scrollIntoView({ block: "center" });
    this._point(index);
  }

  _addChunk(name, start, end) {
    const body = element("p");
    const place = element("span", { textContent: `tokens ${count(start)} to ${count(end - 1)}` });
    const head = element("h3", {}, name, " ", place);
    this._box.append(element("section", {}, head, body));
    this._chunks.push({ start, body });
    return body;
  }

  _indexOf(target) {
    const chunk = this._chunks.find(({ body }) => body === target.parentElement);
    return chunk ? chunk.start + Array.prototype.indexOf.call(chunk.body.children, target) : null;
  }

  _point(index) {
    if (index === null || !this._spans[index] || index === this.current) return;
    if (this.current !== null) delete this._spans[this.current].dataset.current;
    this.current = index;
    this._spans[index].dataset.current = "";
    this._onPoint(index);
  }

  _onKey(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const index = this.current === null ? 0 : this.current + way;
    this._point(index);
    this._spans[index]?.scrollIntoView({ block: "nearest" });
  }
}

function span(text) {
  const node = element("span", { textContent: text });
  if (/^\n+$/.test(text)) node.dataset.newline = ""; // nothing else of it would be seen
  return node;
}
