// Long texts that go with a message: files chosen or dropped, and long pastes.

import { byId, element } from "./dom.js";
import { count } from "./format.js";

const LONG_PASTE = 4000; // characters; more than that is unpleasant in a text field

/** One text as the conversation shows it: its name and size; opened, the text itself. */
export function showText({ name, text }) {
  const shown = element("pre");
  const size = element("span", { className: "quiet", textContent: ` ${count(text.length)} characters` });
  const details = element("details", {}, element("summary", {}, name, size), shown);
  details.addEventListener("toggle", () => (shown.textContent = details.open ? text : ""));
  return details;
}

export class Attachments {
  /**
   * complain: told, in a sentence, why a file was not taken. onChange: called when the person adds or removes one.
   * views: {current, onElsewhere}: the conversation in view, and what takes a file that was chosen for another.
   */
  constructor(complain, onChange, views) {
    this.texts = []; // {name, text}
    this.mostBytes = Infinity;
    this._complain = complain;
    this._onChange = onChange;
    this._views = views;
    this._read = Promise.resolve(); // once all files are read that were chosen so far
    this._list = byId("attachments");
    const file = byId("file");
    byId("attach").onclick = () => file.click();
    file.onchange = () => {
      this.addFiles(file.files);
      file.value = ""; // the same file may be chosen again
    };
    byId("prompt").addEventListener("paste", (event) => this._onPaste(event));
    this._takeDrops();
  }

  /** Put others in their place. */
  replace(texts) {
    this.texts = texts;
    this._show();
  }

  /** A promise: no file is being read then. */
  get read() {
    return this._read;
  }

  /** Files are added in the order in which they were chosen. */
  addFiles(files) {
    const chosen = [...files]; // the list itself changes with the next choice
    const conversation = this._views.current();
    this._read = this._read.then(() => this._addAll(chosen, conversation));
  }

  add(name, text) {
    this.replace([...this.texts, { name, text }]);
    this._complain("");
    this._onChange();
  }

  async _addAll(files, conversation) {
    const inView = () => conversation === this._views.current();
    for (const file of files) {
      const text = await this._textOf(file);
      if (text !== null && inView()) this.add(file.name, text);
      else if (text !== null) this._views.onElsewhere(conversation, { name: file.name, text });
    }
    if (inView()) byId("prompt").focus();
  }

  async _textOf(file) {
    if (file.size > this.mostBytes) {
      this._complain(`${file.name} has ${count(file.size)} bytes, and the server takes ${count(this.mostBytes)}.`);
      return null;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (!text.includes("\0")) return text;
    } catch {
      // not UTF-8, or a folder
    }
    this._complain(`${file.name} is not a text file in UTF-8.`);
    return null;
  }

  _onPaste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (event.clipboardData?.files.length && !text) {
      event.preventDefault();
      this.addFiles(event.clipboardData.files);
    } else if (text.length > LONG_PASTE) {
      event.preventDefault();
      this.add("Pasted text", text);
    }
  }

  _takeDrops() {
    const veil = byId("dropping");
    const takes = ({ dataTransfer }) => ["Files", "text/plain"].some((type) => dataTransfer?.types.includes(type));
    document.addEventListener("dragenter", (event) => {
      if (takes(event)) veil.hidden = false;
    });
    document.addEventListener("dragover", (event) => {
      if (takes(event)) event.preventDefault();
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) veil.hidden = true; // it left the window
    });
    document.addEventListener("drop", (event) => {
      veil.hidden = true;
      if (!takes(event)) return;
      event.preventDefault();
      const { files } = event.dataTransfer;
      if (files.length) this.addFiles(files);
      else this.add("Dropped text", event.dataTransfer.getData("text/plain"));
    });
  }

  _show() {
    this._list.hidden = !this.texts.length;
    this._list.replaceChildren(
      ...this.texts.map((text) => {
        const remove = element("button", { type: "button", className: "plain", textContent: "Remove" });
        remove.ariaLabel = `Remove ${text.name}`;
        remove.onclick = () => {
          this.replace(this.texts.filter((kept) => kept !== text));
          this._onChange();
          byId("prompt").focus();
        };
        return element("li", {}, showText(text), remove);
      }),
    );
  }
}
