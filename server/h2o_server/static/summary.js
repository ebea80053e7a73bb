// How the next prompt will be read, in a few words on the button that leads to the settings.

import { ServerError } from "./api.js";

export class Summary {
  constructor(button) {
    this._button = button;
    this._latest = null; // the promise of the words that are to be shown
  }

  /** words: a promise, of which only the latest is shown. */
  async show(words) {
    this._latest = words;
    const [textContent, title] = await words.then((text) => [text, ""], instead);
    if (this._latest === words) Object.assign(this._button, { textContent, title });
  }
}

/** What there is to show without words. Sending will tell of it, too. */
function instead(error) {
  if (!(error instanceof ServerError)) throw error;
  return [error.status === 400 ? "Settings contradict" : "", error.message];
}
