// What a model thinks before it answers: in view while nothing else is there, then folded.

export class Thoughts {
  constructor(root, title, text) {
    this._root = root;
    this._title = title;
    this._text = text;
    this._chosen = false; // whether the person opened or closed it
    title.addEventListener("click", () => (this._chosen = true));
  }

  clear() {
    this._chosen = false;
    this.show("", false, false);
  }

  /** text: the whole text, which begins with what was shown before. running: more may come. answered: it is over. */
  show(text, running, answered) {
    const shown = this._text.textContent.length;
    if (text.length < shown) this._text.textContent = text;
    else if (text.length > shown) this._text.append(text.slice(shown)); // selections stay
    this._title.textContent = running && !answered ? "Thinking …" : "Thoughts";
    this._root.hidden = !text;
    if (!this._chosen) this._root.open = !answered;
  }
}
