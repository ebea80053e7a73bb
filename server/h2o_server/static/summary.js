// How the next prompt will be read, in a few words on the button that leads to the settings.

import { serverError } from "./api.js";
import { byId } from "./dom.js";

export class Summary {
  _latest = null; // the promise of the words that are to be shown

  /** words: a promise, of which only the latest is shown. */
  async show(words) {
    this._latest = words;
    const [textContent, title] = await words.then((text) => [text, ""], instead);
    if (this._latest === words) Object.assign(byId("summary"), { textContent, title });
  }
}

/** What there is to show without words. Sending will tell of it, too. */
function instead(error) {
  const { status, message } = serverError(error);
  return [status === 400 ? "Settings contradict" : "", message];
}
