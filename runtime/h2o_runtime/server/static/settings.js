// What a person changed about answers and prefill. Requests carry only what differs from the server's defaults.

import { byId } from "./dom.js";
import { count } from "./format.js";

const NAME = "h2o-settings";

export class Settings {
  /** changed: called whenever a request would differ. */
  constructor(changed = () => {}) {
    this.defaults = null; // the server's prefill configuration, once it is known
    this._form = byId("settings-form");
    this._changed = changed;
    this._form.addEventListener("input", () => this._keep());
    byId("reset-settings").onclick = () => this._reset();
    byId("settings").addEventListener("click", (event) => {
      if (event.target === event.currentTarget) event.target.close(); // beside the dialog
    });
  }

  open() {
    byId("settings").showModal();
  }

  /** Take in what the server does unless told otherwise, then what was changed before. */
  begin(prefill) {
    this.defaults = prefill;
    const kept = JSON.parse(localStorage.getItem(NAME) ?? "{}");
    for (const [field, name] of this._fields()) {
      const standard = name.startsWith("prefill.") ? prefill[name.slice(8)] : "";
      if (field.tagName === "SELECT") field.value = kept[name] ?? standard;
      else {
        if (standard !== "") field.placeholder = standard;
        field.value = kept[name] ?? "";
      }
    }
    this._changed();
  }

  /** Members of a request: temperature, max_tokens and prefill, where they were changed. */
  request() {
    if (!this.defaults) return {};
    const { temperature, max_tokens, ...rest } = this._values();
    const prefill = Object.fromEntries(Object.entries(rest).map(([name, value]) => [name.slice(8), value]));
    return {
      ...(temperature !== undefined && { temperature }),
      ...(max_tokens !== undefined && { max_tokens }),
      ...(Object.keys(prefill).length && { prefill }),
    };
  }

  /** The next request's way of reading, in a few words. */
  summary() {
    if (!this.defaults) return "";
    const now = { ...this.defaults, ...this.request().prefill };
    if (now.policy === "full") return "Full attention";
    return `Chunks of ${count(now.chunk_size)}, memory ${count(now.local + now.heavy)}`;
  }

  /** Changed values by the names of their fields. */
  _values() {
    const values = {};
    for (const [field, name] of this._fields()) {
      if (field.value === "") continue;
      const value = field.type === "number" ? Number(field.value) : field.value;
      if (name.startsWith("prefill.") && value === this.defaults?.[name.slice(8)]) continue;
      values[name] = value;
    }
    return values;
  }

  _fields() {
    return [...this._form.elements].filter((field) => field.name).map((field) => [field, field.name]);
  }

  _keep() {
    localStorage.setItem(NAME, JSON.stringify(this._values()));
    this._changed();
  }

  _reset() {
    localStorage.removeItem(NAME);
    this.begin(this.defaults);
  }
}
