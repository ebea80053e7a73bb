// What each slot of the server is doing, while the person looks.

import { get, serverError } from "./api.js";
import { byId, element } from "./dom.js";
import { count, counted, rate } from "./format.js";

const POLL = 1000; // milliseconds

export class SlotList {
  constructor() {
    this._details = byId("slots");
    this._list = byId("slot-list");
    this._first = new Map(); // of each slot: the task, its tokens when it was first seen, and when that was
    this._timer = null;
    this._details.addEventListener("toggle", () => this._look());
    document.addEventListener("visibilitychange", () => this._look());
  }

  /** Ask now and again as long as the list is open and the page is in view. */
  async _look() {
    clearTimeout(this._timer);
    if (!this._details.open || document.hidden) return;
    const asked = get("slots").then((slots) => slots.map((slot) => this._line(slot)));
    const lines = await asked.catch((error) => [serverError(error).message]);
    this._list.replaceChildren(...lines.map((textContent) => element("li", { textContent })));
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._look(), POLL);
  }

  _line(slot) {
    const name = `Slot ${slot.id}: `;
    if (!slot.is_processing) return `${name}idle${slot.n_past ? `, ${counted(slot.n_past, "token")} in its cache` : ""}`;
    const speed = this._speed(slot);
    if (slot.n_decoded) return `${name}answering, ${counted(slot.n_decoded, "token")}${speed}`;
    const total = counted(slot.n_prompt_tokens_new, "token");
    return `${name}reading, ${count(slot.n_prompt_tokens_processed)} of ${total}${speed}`;
  }

  /** Since the task was first seen, after a comma; empty where that is not known yet. */
  _speed({ id, id_task, n_decoded, n_prompt_tokens_processed }) {
    const read = n_decoded || n_prompt_tokens_processed;
    const now = { task: `${id_task} ${n_decoded > 0}`, tokens: read, at: performance.now() };
    if (this._first.get(id)?.task !== now.task) this._first.set(id, now);
    const first = this._first.get(id);
    const tokens = now.tokens - first.tokens;
    const speed = rate(tokens, (1000 * tokens) / (now.at - first.at));
    return speed && `, ${speed}`;
  }
}
