// A conversation: its turns, and the one that is running.

import { forgetChat, keepChat, keepDraft, newId } from "./chats.js";
import { fromTemplate } from "./dom.js";
import { Turn } from "./turn.js";

const LONGEST_NAME = 60; // characters
const NEAR = 8; // pixels from the end within which the view follows the answer

export class Conversation {
  /**
   * settings: what requests carry beside the messages.
   * memory: the panel that shows what the last answer's prompt left behind.
   * onState: called when its name or `busy` may have changed.
   * onEdit: given a message that the person wants to edit before it is sent again.
   * onKept: given the id that it had, when the browser has taken what is to be kept, or has not.
   *
   * id, created: what the browser keeps it under, and since when (milliseconds).
   * root: what the page shows of it, while it is in view.
   * name: from its first message; empty before that.
   * unsent: the message that is being written, {text, files}, while it is not in view.
   * unreached: whether its last request found no server.
   * kept: whether the browser has what is to be kept of it.
   */
  constructor(settings, memory, { onState, onEdit, onKept }) {
    const { root, parts } = fromTemplate("conversation");
    this.root = root;
    this.id = newId();
    this.created = Date.now();
    this.name = "";
    this.unsent = { text: "", files: [] };
    this.unreached = false;
    this._welcome = parts.welcome;
    this._settings = settings;
    this._memory = memory;
    this._onState = onState;
    this._onEdit = onEdit;
    this._onKept = onKept;
    this._keeps = { chat: true, draft: true }; // whether the browser took them
    this._revision = null; // of what is kept
    this._deleted = false;
    this._records = null; // of turns that nobody has looked at yet
    this._atEnd = true; // whether the person looks at the end of the conversation
    this._top = 0; // where the view was left
    this._turns = [];
    this._running = null; // AbortController
    root.addEventListener("scroll", () => this.noteView());
    new ResizeObserver(() => this._follow()).observe(root);
  }

  get busy() {
    return this._running !== null;
  }

  get kept() {
    return this._keeps.chat && this._keeps.draft;
  }

  /** Become what is kept. */
  restore({ id, created, chat, draft }) {
    Object.assign(this, { id, created });
    if (draft) this.unsent = draft;
    if (chat) this.update(chat);
  }

  /** Another page has changed it. */
  update({ revision, name, turns }) {
    Object.assign(this, { name, _revision: revision, _records: turns });
    if (this.root.isConnected) this.look();
    this._onState();
  }

  send(message) {
    this.name ||= (message.text || message.files[0].name).slice(0, LONGEST_NAME);
    return this._run(this._add(message));
  }

  stop() {
    this._running?.abort();
  }

  /** It comes into view: where it was left, or at its end. */
  look() {
    if (this._records) this._show(this._records);
    this.root.scrollTop = this._top;
    this._follow();
  }

  /** Who went up from where the view was left wants to read there; who comes back to the end, to follow again. */
  noteView() {
    if (!this.root.isConnected) return;
    const { scrollTop, scrollHeight, clientHeight } = this.root;
    const end = scrollHeight - clientHeight;
    if (scrollTop < Math.min(this._top, end) - 1) this._atEnd = false;
    if (scrollTop > end - NEAR) this._atEnd = true;
    if (!this._atEnd) this._top = scrollTop;
  }

  /** Write down what there is. The page may be gone before the answer is complete. */
  keep() {
    if (this._deleted) return;
    if (!this._turns.length) {
      forgetChat(this.id);
      Object.assign(this, { name: "", _revision: null });
      return;
    }
    const before = this.id;
    const turns = this._turns.map(({ record }) => record);
    const { id, revision, kept } = keepChat(before, this._revision, { created: this.created, name: this.name, turns });
    Object.assign(this, { id, _revision: revision });
    this._keeps.chat = kept;
    this._onKept(before);
  }

  keepUnsent(message) {
    if (this._deleted) return;
    this._keeps.draft = keepDraft(this.id, this.created, message);
    this._onKept(this.id);
  }

  /** It ends, and nothing is kept of it. */
  delete() {
    this._deleted = true;
    this.stop();
    forgetChat(this.id);
  }

  _add(message) {
    const turn = new Turn(message, () => this._onText(turn));
    turn.buttons.retry.onclick = () => this._retry(turn);
    turn.buttons.edit.onclick = () => this._edit(turn);
    turn.buttons.memory.onclick = () => this._memory.open(turn.result);
    this._turns.push(turn);
    this._welcome.hidden = true;
    this.root.append(turn.root);
    return turn;
  }

  _show(records) {
    this._records = null;
    this._welcome.hidden = records.length > 0;
    for (const turn of this._turns) turn.root.remove();
    this._turns = [];
    for (const record of records) this._add(record.message).restore(record);
    for (const turn of this._turns.slice(0, -1)) turn.forget();
  }

  async _run(turn) {
    if (this.busy) return;
    const running = new AbortController();
    this._running = running;
    this.root.classList.add("answering");
    this._onState();
    this._atEnd = true;
    this._top = 0;
    this._follow();
    const answered = turn.run(this._request(turn), running.signal);
    this.keep();
    try {
      await answered;
    } finally {
      this._running = null;
      this.root.classList.remove("answering");
      this.unreached = turn.unreached;
      this.keep();
      this._onState();
      this._follow();
    }
    if (this.root.isConnected && turn.result.firstMs !== undefined) this._memory.follow(turn.result);
  }

  _retry(turn) {
    if (!this._drop(this._answersAfter(turn), "Try again? Later answers are deleted, with their messages.")) return;
    this.root.focus(); // its button is out of reach now
    this._run(turn);
  }

  _edit(turn) {
    const dropped = [turn, ...this._answersAfter(turn)];
    if (!this._drop(dropped, "Edit this message? Its answer is deleted, and what comes after it.")) return;
    this.keep();
    this._onState();
    this._onEdit(turn.message);
  }

  /** What would not follow from another answer. Messages that have none stay. */
  _answersAfter(turn) {
    return this._turns.slice(this._turns.indexOf(turn) + 1).filter(({ told }) => told);
  }

  /** → whether the turns are gone. An answer is lost only if the person says so. */
  _drop(turns, question) {
    if (turns.some(({ told }) => told) && !confirm(question)) return false;
    for (const turn of turns) turn.root.remove();
    this._turns = this._turns.filter((turn) => !turns.includes(turn));
    this._welcome.hidden = this._turns.length > 0;
    return true;
  }

  async _request(turn) {
    const messages = [];
    for (const { content, answer } of this._turns.slice(0, this._turns.indexOf(turn)).filter(({ told }) => told)) {
      messages.push({ role: "user", content }, { role: "assistant", content: answer });
    }
    messages.push({ role: "user", content: turn.content });
    return {
      messages,
      stream: true,
      stream_options: { include_usage: true },
      return_progress: true,
      ...(await this._settings.request()),
    };
  }

  _onText(turn) {
    for (const each of this._turns) if (each !== turn) each.forget();
    this._follow();
  }

  /** Keep the end in view, unless the person went to read something above. */
  _follow() {
    this.noteView(); // pieces of an answer come faster than scroll events, and must not undo what the person does
    if (!this._atEnd || !this.root.isConnected) return;
    this.root.scrollTop = this.root.scrollHeight;
    this._top = this.root.scrollTop;
  }
}
