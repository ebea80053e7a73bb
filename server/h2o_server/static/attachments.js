// Long texts that go with a message: files chosen or dropped, and long pastes.

import { byId, element } from "./dom.js";
import { count } from "./format.js";

const LONG_PASTE = 4000; // characters; more than that is unpleasant in a text field
const EMPTY = "is empty: it has no text to send";
const isEmpty = (text) => !text.trim();

/** One text as the conversation shows it: its name and size; opened, the text itself. */
export function showText({ name, text }) {
  const shown = element("pre", { dir: "auto" });
  const size = element("span", { className: "quiet", textContent: ` ${count(text.length)} characters` });
  const details = element("details", {}, element("summary", {}, element("bdi", { textContent: name }), size), shown);
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
    this.read = Promise.resolve(); // once all files are read that were chosen so far
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

  /** Files are added in the order in which they were chosen. */
  addFiles(files) {
    const chosen = [...files]; // the list itself changes with the next choice
    const conversation = this._views.current();
    this.read = this.read.then(() => this._addAll(chosen, conversation));
  }

  add(name, text) {
    this.replace([...this.texts, { name, text }]);
    this._onChange();
  }

  _addText(name, text) {
    const empty = isEmpty(text);
    if (!empty) this.add(name, text);
    this._complain(empty ? `${name} ${EMPTY}.` : "");
  }

  async _addAll(files, conversation) {
    const inView = () => conversation === this._views.current();
    const problems = [];
    for (const file of files) {
      const { text, problem } = await this._textOf(file);
      if (problem) problems.push(`${file.name} ${problem}.`);
      else if (inView()) this.add(file.name, text);
      else this._views.onElsewhere(conversation, { name: file.name, text });
    }
    this._complain(problems.join(" "));
    if (inView()) byId("prompt").focus();
  }

  /** → {text} or {problem}, which goes on from the file's name. */
  async _textOf(file) {
    if (file.size > this.mostBytes) {
      return { problem: `has ${count(file.size)} bytes, and the server takes ${count(this.mostBytes)}` };
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (isEmpty(text)) return { problem: EMPTY };
      if (!text.includes("\0")) return { text };
    } catch {
      // not UTF-8, or a folder
    }
    return { problem: "is not a text file in UTF-8" };
  }

  _onPaste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (event.clipboardData?.files.length && !text) {
      event.preventDefault();
      this.addFiles(event.clipboardData.files);
    } else if (text.length > LONG_PASTE) {
      event.preventDefault();
      this._addText("Pasted text", text);
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
      else this._addText("Dropped text", event.dataTransfer.getData("text/plain"));
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
