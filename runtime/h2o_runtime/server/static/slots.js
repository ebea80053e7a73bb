// What each slot of the server is doing, while the person looks.

import { get, ServerError } from "./api.js";
import { byId, element } from "./dom.js";
import { count, counted, rate } from "./format.js";

const POLL = 1000; // milliseconds

export class SlotList {
  constructor() {
    this._details = byId("slots");
    this._list = byId("slot-list");
    this._before = new Map(); // of each slot: the task, its tokens and when they were counted
    this._timer = null;
    this._details.addEventListener("toggle", () => this._look());
    document.addEventListener("visibilitychange", () => this._look());
  }

  /** Ask now and again as long as the list is open and the page is in view. */
  async _look() {
    clearTimeout(this._timer);
    if (!this._details.open || document.hidden) return;
    const lines = await get("slots").then((slots) => slots.map((slot) => this._line(slot)), instead);
    this._list.replaceChildren(...lines.map((textContent) => element("li", { textContent })));
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._look(), POLL);
  }

  _line(slot) {
    const name = `Slot ${slot.id}: `;
    if (!slot.is_processing) return `${name}idle${slot.n_past ? `, ${counted(slot.n_past, "token")} in its cache` : ""}`;
    const perSecond = this._rate(slot);
    const speed = perSecond ? `, ${rate(perSecond)} tokens/s` : "";
    if (slot.n_decoded) return `${name}answering, ${counted(slot.n_decoded, "token")}${speed}`;
    const total = counted(slot.n_prompt_tokens_new, "token");
    return `${name}reading, ${count(slot.n_prompt_tokens_processed)} of ${total}${speed}`;
  }

  /** Tokens a second since the last look; 0 where that is not known yet. */
  _rate({ id, id_task, n_decoded, n_prompt_tokens_processed }) {
    const tokens = n_decoded || n_prompt_tokens_processed;
    const now = { task: `${id_task} ${n_decoded > 0}`, tokens, at: performance.now() };
    const before = this._before.get(id);
    this._before.set(id, now);
    return before?.task === now.task ? (1000 * (tokens - before.tokens)) / (now.at - before.at) : 0;
  }
}

/** What there is to show without slots. */
function instead(error) {
  if (!(error instanceof ServerError)) throw error;
  return [error.message];
}
