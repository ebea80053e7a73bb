// One turn of the conversation: a person's message, and the answer as it comes.

import { chat, ServerError } from "./api.js";
import { showText } from "./attachments.js";
import { element, fromTemplate } from "./dom.js";
import { figures } from "./figures.js";
import { Reading } from "./reading.js";

export class Turn {
  /** message: {text, files: [{name, text}]}. */
  constructor(message) {
    const { root, parts } = fromTemplate("turn");
    this.root = root;
    this.message = message;
    this.buttons = { retry: parts.retry, change: parts.change, memory: parts.memory };
    this.result = {}; // what is known of the answer: id, firstMs, usage, timings, h2o, reason
    this._parts = parts;
    this._reading = new Reading(parts);
    this._text = document.createTextNode("");
    parts.answer.append(this._text);
    parts.question.textContent = message.text;
    parts.files.hidden = !message.files.length;
    parts.files.append(...message.files.map((file) => element("li", {}, showText(file))));
  }

  /** The message as the model gets it: texts first, so that the question stands at the end. */
  get content() {
    return [...this.message.files.map((file) => file.text), this.message.text].filter(Boolean).join("\n\n");
  }

  get answer() {
    return this._text.data;
  }

  /** Whether it belongs to what later turns are told. */
  get answered() {
    return Boolean(this.result.reason) && (this.answer !== "" || this.result.reason !== "stopped");
  }

  /** Ask and show the answer. Whatever goes wrong is shown, not thrown. onText: called after each piece. */
  async run(request, signal, onText) {
    this._begin();
    const begin = performance.now();
    try {
      for await (const chunk of chat(request, signal)) {
        if (this._take(chunk)) {
          this.result.firstMs ??= performance.now() - begin;
          onText();
        }
      }
    } catch (error) {
      if (signal.aborted) this.result.reason = "stopped";
      else if (error instanceof ServerError) this._fail(error);
      else throw error;
    } finally {
      this._end();
    }
  }

  /** There is a later turn: this one is not repeated or changed, which would come out of order. */
  pass() {
    this._parts.offers.hidden = true;
  }

  /** There is a later answer: this one's memory is gone. */
  forget() {
    this.buttons.memory.hidden = true;
  }

  _begin() {
    this.result = {};
    this._text.data = "";
    this._parts.problem.hidden = true;
    this._parts.figures.hidden = true;
    this._parts.body.ariaBusy = "true";
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
    const text = choice?.delta.content;
    if (!text) return false;
    this._reading.end();
    this._text.appendData(text);
    return true;
  }

  _fail({ message, retryAfter }) {
    const what = this.answer ? "The answer stopped early" : "No answer";
    const when = retryAfter === null ? "" : `. It expects to be free in about ${retryAfter} s.`;
    this._complain(`${what}: ${message}${when}`);
  }

  _complain(sentence) {
    this._parts["problem-text"].textContent = sentence;
    this._parts.problem.hidden = false;
    this._parts.offers.hidden = false;
  }

  _end() {
    this._reading.end();
    this._parts.body.ariaBusy = "false";
    const shown = figures(this.result, this.answer);
    this._parts["figure-list"].replaceChildren(...shown);
    this._parts.figures.hidden = !shown.length;
    this.buttons.memory.hidden = this.result.firstMs === undefined;
    if (this.result.reason === "stopped" && !this.answer) this._complain("Stopped before the answer began.");
  }
}
