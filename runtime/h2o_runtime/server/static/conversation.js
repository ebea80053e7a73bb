// A conversation: its turns, and the one that is running.

import { fromTemplate } from "./dom.js";
import { Turn } from "./turn.js";

const LONGEST_NAME = 60; // characters
const NEAR = 8; // pixels from the end within which the view follows the answer

export class Conversation {
  /**
   * settings: what requests carry beside the messages.
   * memory: the panel that shows what the last answer's prompt left behind.
   * onState: called when its name or `busy` may have changed.
   * onChange: given a message that the person wants to change before it is sent again.
   *
   * root: what the page shows of it, while it is in view.
   * name: from its first message; empty before that.
   * unsent: the message that is being written, {text, files}, while it is not in view.
   */
  constructor(settings, memory, { onState, onChange }) {
    const { root, parts } = fromTemplate("conversation");
    this.root = root;
    this.name = "";
    this.unsent = { text: "", files: [] };
    this._welcome = parts.welcome;
    this._settings = settings;
    this._memory = memory;
    this._onState = onState;
    this._onChange = onChange;
    this._atEnd = true; // whether the person looks at the end of the conversation
    this._top = 0; // where the view was left
    this._turns = [];
    this._running = null; // AbortController
    root.addEventListener("scroll", () => this._look());
    new ResizeObserver(() => this._follow()).observe(root);
  }

  get busy() {
    return this._running !== null;
  }

  send(message) {
    const turn = new Turn(message);
    turn.buttons.retry.onclick = () => this._run(turn);
    turn.buttons.change.onclick = () => this._change(turn);
    turn.buttons.memory.onclick = () => this._memory.open(turn.result);
    this.name ||= (message.text || message.files[0].name).slice(0, LONGEST_NAME);
    for (const earlier of this._turns) earlier.pass();
    this._turns.push(turn);
    this._welcome.hidden = true;
    this.root.append(turn.root);
    return this._run(turn);
  }

  stop() {
    this._running?.abort();
  }

  /** It comes into view: where it was left, or at its end. */
  look() {
    this.root.scrollTop = this._top;
    this._follow();
  }

  async _run(turn) {
    if (this.busy) return;
    const running = new AbortController();
    this._running = running;
    this._onState();
    this._atEnd = true;
    this._top = 0;
    this._follow();
    try {
      await turn.run(this._request(turn), running.signal, () => this._onText(turn));
    } finally {
      this._running = null;
      this._onState();
      this._follow();
    }
    if (this.root.isConnected && turn.result.firstMs !== undefined) this._memory.follow(turn.result);
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
    if (!this._atEnd || !this.root.isConnected) return;
    this.root.scrollTop = this.root.scrollHeight;
    this._top = this.root.scrollTop;
  }

  /** Who went up from where the view was left wants to read there; who comes back to the end, to follow again. */
  _look() {
    if (!this.root.isConnected) return;
    const { scrollTop, scrollHeight, clientHeight } = this.root;
    const end = scrollHeight - clientHeight;
    if (scrollTop < Math.min(this._top, end) - 1) this._atEnd = false;
    if (scrollTop > end - NEAR) this._atEnd = true;
    if (!this._atEnd) this._top = scrollTop;
  }
}
