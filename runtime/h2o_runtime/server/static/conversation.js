// The conversation: its turns, and the one that is running.

import { byId } from "./dom.js";
import { Turn } from "./turn.js";

const NEAR = 80; // pixels from the end within which the view follows the answer

export class Conversation {
  /**
   * settings: what requests carry beside the messages.
   * memory: the panel that shows what the last answer's prompt left behind.
   * onBusy: told whether an answer is running.
   */
  constructor(settings, memory, onBusy) {
    this._settings = settings;
    this._memory = memory;
    this._onBusy = onBusy;
    this._log = byId("log");
    this._turns = [];
    this._running = null; // AbortController
  }

  get busy() {
    return this._running !== null;
  }

  send(message) {
    const turn = new Turn(message);
    turn.retry.onclick = () => this._run(turn);
    turn.showMemory.onclick = () => this._memory.open(turn.result);
    for (const earlier of this._turns) earlier.retry.hidden = true; // it would come out of order
    this._turns.push(turn);
    byId("welcome").hidden = true;
    this._log.append(turn.root);
    return this._run(turn);
  }

  stop() {
    this._running?.abort();
  }

  /** Begin anew. */
  clear() {
    this.stop();
    for (const turn of this._turns) turn.root.remove();
    this._turns = [];
    this._memory.close();
    byId("welcome").hidden = false;
  }

  async _run(turn) {
    if (this.busy) return;
    const running = new AbortController();
    this._running = running;
    this._onBusy(true);
    this._log.scrollTop = this._log.scrollHeight;
    try {
      await turn.run(this._request(turn), running.signal, () => this._onText(turn));
    } finally {
      this._running = null;
      this._onBusy(false);
    }
    if (this._turns.includes(turn) && turn.result.firstMs !== undefined) this._memory.follow(turn.result);
    this._follow();
  }

  _request(turn) {
    const messages = [];
    for (const each of this._turns) {
      if (each !== turn && !each.answered) continue;
      messages.push({ role: "user", content: each.content });
      if (each !== turn) messages.push({ role: "assistant", content: each.answer });
    }
    return {
      messages,
      stream: true,
      stream_options: { include_usage: true },
      return_progress: true,
      ...this._settings.request(),
    };
  }

  _onText(turn) {
    for (const each of this._turns) if (each !== turn) each.retire();
    this._follow();
  }

  /** Keep the end in view, unless the person went to read something above. */
  _follow() {
    const { scrollTop, clientHeight, scrollHeight } = this._log;
    if (scrollHeight - scrollTop - clientHeight < NEAR) this._log.scrollTop = scrollHeight;
  }
}
