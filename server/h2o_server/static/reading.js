// The prompt's progress while the server reads it.

import { count, counted, rate } from "./format.js";

const SOON = 1.5; // seconds; a shorter rest is not worth announcing

export class Reading {
  constructor(parts) {
    this._parts = parts;
  }

  /** The request is on its way; it may have to wait for others. */
  begin() {
    this._say("Waiting for the server …");
    this._fill(0, 0);
    this._parts.bar.removeAttribute("aria-valuenow");
    this._parts.reading.hidden = false;
  }

  /** The server has begun. */
  accepted() {
    this._say("Reading the prompt …");
  }

  /** As the server tells it, in tokens of the prompt; `processed` includes those in the cache. */
  progress({ total, cache, processed, time_ms }) {
    this._fill(cache / total, (processed - cache) / total);
    this._parts.bar.ariaValueMax = total;
    this._parts.bar.ariaValueNow = processed;
    const perSecond = time_ms ? (1000 * (processed - cache)) / time_ms : 0;
    const speed = perSecond && rate(processed - cache, perSecond);
    const left = speed ? (total - processed) / perSecond : 0;
    this._say(
      [
        `${count(processed)} of ${counted(total, "token")} read`,
        cache ? `${count(cache)} from the cache` : "",
        speed,
        left > SOON ? `about ${Math.ceil(left)} s left` : "",
      ]
        .filter(Boolean)
        .join(" · "),
    );
  }

  end() {
    this._parts.reading.hidden = true;
  }

  _fill(cached, read) {
    this._parts.cached.style.width = `${100 * cached}%`;
    this._parts.read.style.width = `${100 * read}%`;
  }

  _say(text) {
    this._parts["reading-text"].textContent = text;
  }
}
