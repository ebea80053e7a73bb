// What the browser keeps for the page: one text a name. A browser that keeps nothing, or refuses to, is no error:
// the text then lasts as long as the page.

export class Stored {
  /** area: "localStorage" or "sessionStorage". */
  constructor(area, name) {
    this._area = area;
    this._name = name;
    this._text = null;
  }

  /** The text, or null. */
  get() {
    try {
      return window[this._area].getItem(this._name);
    } catch {
      return this._text;
    }
  }

  /** text: null removes it. → whether the browser keeps it. */
  set(text) {
    this._text = text;
    try {
      if (text === null) window[this._area].removeItem(this._name);
      else window[this._area].setItem(this._name, text);
      return true;
    } catch {
      return false; // it is kept here
    }
  }
}

/** What the names in an area begin with `prefix` and go on with. */
export function storedNames(area, prefix) {
  try {
    const names = Object.keys(window[area]).filter((name) => name.startsWith(prefix));
    return names.map((name) => name.slice(prefix.length));
  } catch {
    return [];
  }
}
