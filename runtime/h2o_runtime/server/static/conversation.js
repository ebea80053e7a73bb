// The conversation: its turns, and the one that is running.

import { byId } from "./dom.js";
import { Turn } from "./turn.js";

const NEAR = 8; // pixels from the end within which the view follows the answer

export class Conversation {
  /**
   * settings: what requests carry beside the messages.
   * memory: the panel that shows what the last answer's prompt left behind.
   * onBusy: told whether an answer is running.
   * onChange: given a message that the person wants to change before it is sent again.
   */
  constructor(settings, memory, { onBusy, onChange }) {
    this._settings = settings;
    this._memory = memory;
    this._onBusy = onBusy;
    this._onChange = onChange;
    this._log = byId("log");
    this._atEnd = true; // whether the person looks at the end of the conversation
    this._top = 0; // where the view was left
    this._turns = [];
    this._running = null; // AbortController
    this._log.addEventListener("scroll", () => this._look());
    new ResizeObserver(() => this._follow()).observe(this._log);
  }

  get busy() {
    return this._running !== null;
  }

  send(message) {
    const turn = new Turn(message);
    turn.buttons.retry.onclick = () => this._run(turn);
    turn.buttons.change.onclick = () => this._change(turn);
    turn.buttons.memory.onclick = () => this._memory.open(turn.result);
    for (const earlier of this._turns) earlier.pass();
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
    this._atEnd = true;
    this._top = 0;
    this._follow();
    try {
      await turn.run(this._request(turn), running.signal, () => this._onText(turn));
    } finally {
      this._running = null;
      this._onBusy(false);
      this._follow();
    }
    if (this._turns.includes(turn) && turn.result.firstMs !== undefined) this._memory.follow(turn.result);
  }

  _change(turn) {
    turn.root.remove();
    this._turns = this._turns.filter((other) => other !== turn);
    this._onChange(turn.message);
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
    for (const each of this._turns) if (each !== turn) each.forget();
    this._follow();
  }

  /** Keep the end in view, unless the person went to read something above. */
  _follow() {
    this._look(); // pieces of an answer come faster than scroll events, and must not undo what the person does
    if (!this._atEnd) return;
    this._log.scrollTop = this._log.scrollHeight;
    this._top = this._log.scrollTop;
  }

  /** Who went up from where the view was left wants to read there; who comes back to the end, to follow again. */
  _look() {
    const { scrollTop, scrollHeight, clientHeight } = this._log;
    const end = scrollHeight - clientHeight;
    if (scrollTop < Math.min(this._top, end) - 1) this._atEnd = false;
    if (scrollTop > end - NEAR) this._atEnd = true;
  }
}
