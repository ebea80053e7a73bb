// What a person changed about answers and prefill. Requests carry only what differs from the server's defaults.

import { post } from "./api.js";
import { byId } from "./dom.js";
import { PrefillForm } from "./prefill_form.js";
import { Stored } from "./storage.js";

const STORED = new Stored("localStorage", "h2o-settings");
const NUMBERS = ["temperature", "max_tokens"];
const THINKING = { on: true, off: false };

export class Settings {
  /**
   * ask: has the server say what it does by default, for `begin` → the ServerError that came instead, or null.
   * changed: called whenever a request would differ.
   */
  constructor(ask, changed) {
    this._known = false; // whether the server has said it
    this._form = byId("settings-form");
    this._ask = ask;
    this._changed = changed;
    this._write(kept());
    this._form.addEventListener("input", () => this._keep());
    byId("reset-settings").onclick = () => this._reset();
    byId("settings").addEventListener("click", (event) => {
      if (event.target === event.currentTarget) event.target.close(); // beside the dialog
    });
  }

  open() {
    byId("settings").showModal();
  }

  /** Take in what the server does unless told otherwise (GET /props), then what was changed before. */
  begin({ prefill_forms, prefill_summary, thinks }) {
    this._known = true;
    byId("thinking").hidden = !thinks;
    this._standardSummary = prefill_summary;
    this._prefill = new PrefillForm(prefill_forms);
    this._fill(kept());
  }

  /**
   * Members of a request: temperature, max_tokens, chat_template_kwargs and prefill, where they were changed.
   * Waits for the server where it has not said what it does. Throws ServerError where it does not say it.
   */
  async request() {
    while (!this._known) {
      const problem = await this._ask();
      if (problem) throw problem;
    }
    return { ...this._numbers(), ...this._thinking(), ...this._reading() };
  }

  /** The next request's way of reading, in the server's few words. Throws ServerError where settings contradict. */
  async summary() {
    if (!this._known) return "";
    const { prefill } = this._reading();
    return prefill ? (await post("props/prefill", { prefill })).summary : this._standardSummary;
  }

  _fill(kept) {
    this._write(kept);
    this._prefill.fill(kept.prefill ?? {});
    this._changed();
  }

  /** The fields that are there whatever the server does. */
  _write(kept) {
    for (const name of [...NUMBERS, "thinking"]) this._form.elements[name].value = kept[name] ?? "";
  }

  /** Changed numbers, by name. */
  _numbers() {
    const given = NUMBERS.map((name) => [name, this._form.elements[name].value]).filter(([, value]) => value !== "");
    return Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
  }

  /** Chat templates name the variable that switches thinking in one of two ways. */
  _thinking() {
    const thinking = THINKING[this._form.elements.thinking.value];
    if (byId("thinking").hidden || thinking === undefined) return {};
    return { chat_template_kwargs: { enable_thinking: thinking, thinking } };
  }

  _reading() {
    const prefill = this._prefill.request();
    return prefill ? { prefill } : {};
  }

  _keep() {
    this._prefill?.show();
    const prefill = this._prefill?.values() ?? kept().prefill;
    STORED.set(JSON.stringify({ ...this._numbers(), thinking: this._form.elements.thinking.value, prefill }));
    this._changed();
  }

  _reset() {
    STORED.set(null);
    if (this._known) this._fill({});
  }
}

/** What was changed in this browser before; nothing where that cannot be read. */
function kept() {
  try {
    return JSON.parse(STORED.get()) ?? {};
  } catch {
    return {};
  }
}
