// One turn of the conversation: a person's message, and the answer as it comes.

import { chat, serverError, unlessAborted } from "./api.js";
import { showText } from "./attachments.js";
import { copy } from "./clipboard.js";
import { element, fromTemplate, soon } from "./dom.js";
import { figures } from "./figures.js";
import { Markdown } from "./markdown.js";
import { Reading } from "./reading.js";
import { Thoughts } from "./thoughts.js";

const LEFT_OUT = "The next request goes without this message.";
const STAYS = "What is here of it stays in the conversation.";
const INTERRUPTED = "the page was closed meanwhile, or another tab still waits for it";

export class Turn {
  /** message: {text, files: [{name, text}]}. onText: called when more of the answer is shown. */
  constructor(message, onText) {
    const { root, parts } = fromTemplate("turn");
    this.root = root;
    this.message = message;
    this.buttons = { retry: parts.retry, edit: parts.edit, memory: parts.memory };
    this.result = {}; // what is known of the answer: id, firstMs, usage, timings, h2o, reason
    this.thoughts = "";
    this.answer = "";
    this.unreached = false; // whether the server could not be reached the last time
    this._problem = ""; // why there is no whole answer
    this._running = false;
    this._parts = parts;
    this._reading = new Reading(parts);
    this._thoughts = new Thoughts(parts.thoughts, parts["thoughts-title"], parts["thoughts-text"]);
    this._shown = new Markdown(parts.answer);
    this._drawSoon = soon(() => {
      this._draw();
      if (this.answer || this.thoughts) onText();
    });
    parts.question.textContent = message.text;
    parts["copy-message"].hidden = !message.text;
    parts["copy-message"].onclick = () => copy(message.text, parts["copy-message"]);
    parts["copy-answer"].onclick = () => copy(this.answer, parts["copy-answer"]);
    parts.files.hidden = !message.files.length;
    parts.files.append(...message.files.map((file) => element("li", {}, showText(file))));
  }

  /** The message as the model gets it: texts first, so that the question stands at the end. */
  get content() {
    return [...this.message.files.map((file) => file.text), this.message.text].filter(Boolean).join("\n\n");
  }

  /** Whether it belongs to what later turns are told: a whole answer does, and what is shown of one that broke off. */
  get told() {
    return this.answer !== "" || Boolean(this.result.reason && this.result.reason !== "stopped");
  }

  /** What is to be kept of it. */
  get record() {
    return { message: this.message, thoughts: this.thoughts, answer: this.answer, result: this.result, problem: this._problem };
  }

  /** Show a record. */
  restore({ thoughts = "", answer, result, problem }) {
    Object.assign(this, { thoughts, answer, result, _problem: problem });
    if (!problem && !result.reason) this._break(INTERRUPTED);
    this._end();
  }

  /** Ask and show the answer. request: a promise. Whatever goes wrong is shown, not thrown. */
  async run(request, signal) {
    this._begin();
    try {
      const body = await unlessAborted(request, signal);
      const begin = performance.now();
      for await (const chunk of chat(body, signal)) {
        if (this._take(chunk)) this.result.firstMs ??= performance.now() - begin;
      }
    } catch (error) {
      if (signal.aborted) this._stop();
      else this._fail(serverError(error));
    } finally {
      this._end();
    }
  }

  /** There is a later answer: this one's memory is gone. */
  forget() {
    this.buttons.memory.hidden = true;
  }

  _begin() {
    Object.assign(this, { result: {}, thoughts: "", answer: "", unreached: false, _problem: "", _running: true });
    this._thoughts.clear();
    this._shown.clear();
    this._parts.problem.hidden = true;
    this._parts.figures.hidden = true;
    this._parts.body.ariaBusy = "true";
    this.root.classList.remove("left-out");
    this._reading.begin();
  }

  /** → whether the chunk brought text. */
  _take(chunk) {
    const [choice] = chunk.choices;
    const { result } = this;
    result.id = chunk.id;
    if (chunk.prompt_progress) this._reading.progress(chunk.prompt_progress);
    else if (choice?.delta.role) this._reading.accepted();
    for (const name of ["usage", "timings", "h2o"]) if (chunk[name]) result[name] = chunk[name];
    if (choice?.finish_reason) result.reason = choice.finish_reason;
    const { reasoning_content: thought, content } = choice?.delta ?? {};
    if (!thought && !content) return false;
    this._reading.end();
    this.thoughts += thought ?? "";
    this.answer += content ?? "";
    this._drawSoon();
    return true;
  }

  _draw() {
    this._thoughts.show(this.thoughts, this._running, Boolean(this.answer));
    this._shown.show(this.answer, this._running);
  }

  _stop() {
    this.result.reason = "stopped";
    if (!this.answer) this._problem = `Stopped before the answer began. ${LEFT_OUT}`;
  }

  _fail({ message, retryAfter, status }) {
    this.unreached = status === 0;
    const when = retryAfter === null ? "" : `. It expects to be free in about ${retryAfter} s`;
    this._break(`${message}${when}`);
  }

  _break(why) {
    delete this.result.reason; // an end that was announced did not come
    const sentence = /[.?!]$/.test(why) ? why : `${why}.`;
    this._problem = this.answer ? `The answer stopped early: ${sentence} ${STAYS}` : `No answer: ${sentence} ${LEFT_OUT}`;
  }

  _end() {
    this._running = false;
    this._reading.end();
    this._draw();
    this._parts.body.ariaBusy = "false";
    this._parts.problem.textContent = this._problem;
    this._parts.problem.hidden = !this._problem;
    this._parts["copy-answer"].hidden = !this.answer;
    this.root.classList.toggle("left-out", !this.told);
    const shown = figures(this.result);
    this._parts["figure-list"].replaceChildren(...shown);
    this._parts.figures.hidden = !shown.length;
    this.buttons.memory.hidden = this.result.firstMs === undefined;
  }
}
