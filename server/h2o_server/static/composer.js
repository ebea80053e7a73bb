// Where a message is written.

import { Attachments } from "./attachments.js";
import { byId } from "./dom.js";

const PAUSE = 300; // milliseconds after the last key

export class Composer {
  /**
   * onSend: the person wants to send what is written. onPause: called some time after it has changed.
   * views: see Attachments.
   */
  constructor(onSend, onPause, views) {
    this._prompt = byId("prompt");
    this._problem = byId("composer-problem");
    this._onPause = onPause;
    this._timer = null;
    this._attachments = new Attachments((sentence) => this.complain(sentence), () => this._changed(), views);
    const send = async () => {
      const conversation = views.current();
      await this._attachments.read; // a file that is still being read belongs to the message
      if (conversation === views.current()) onSend();
    };
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    this._prompt.addEventListener("input", () => {
      this._fit();
      this._changed();
    });
    this._prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    });
  }

  /** What is written, as {text, files}. */
  get message() {
    return { text: this._prompt.value.trim(), files: this._attachments.texts };
  }

  set mostBytes(bytes) {
    this._attachments.mostBytes = bytes;
  }

  /** What is written, which is then no longer there. */
  take() {
    const { message } = this;
    this.write({ text: "", files: [] });
    this.complain("");
    return message;
  }

  /** Put a message in the place of what is written. */
  write({ text, files }) {
    this._prompt.value = text;
    this._attachments.replace(files);
    this._fit();
  }

  complain(sentence) {
    this._problem.textContent = sentence;
    this._problem.hidden = !sentence;
  }

  /** Not on a touch screen, whose keyboard would cover the answer. */
  focus() {
    if (matchMedia("(pointer: fine)").matches) this._prompt.focus();
    else this._prompt.blur();
  }

  _changed() {
    clearTimeout(this._timer);
    this._timer = setTimeout(this._onPause, PAUSE);
  }

  /** As high as its text, up to what the style sheet allows. */
  _fit() {
    this._prompt.style.height = "auto";
    this._prompt.style.height = `${this._prompt.scrollHeight}px`;
  }
}
