// The form's fields on reading the prompt, made of the policies that GET /props offers.

import { byId, element } from "./dom.js";

const YES_NO = { true: "yes", false: "no" };

export class PrefillForm {
  /** forms: what /props offers, the server's own policy first. */
  constructor(forms) {
    this._forms = forms;
    const choices = forms.map(({ text, title }) => element("option", { value: text, textContent: title }));
    this._policy = element("select", { name: "prefill.policy" }, ...choices);
    this._fields = element("div");
    this._controls = new Map();
    byId("prefill-fields").replaceChildren(element("label", {}, "Attention ", this._policy), this._fields);
  }

  /** Take over what `values` gave before. */
  fill({ policy = "", settings = {} }) {
    this._policy.value = this._forms.some(({ text }) => text === policy) ? policy : "";
    this._show(settings);
  }

  /** Show the chosen policy's options: after a person chose one. */
  show() {
    if (this._shown !== this._policy.value) this._show({});
  }

  /** The chosen policy, and its settings that were changed, by name. */
  values() {
    const settings = {};
    for (const option of this._form.options) {
      const { value } = this._controls.get(option.name);
      const typed = value === "" ? this._form.settings[option.name] : typeOf(option, value);
      if (typed !== this._form.settings[option.name]) settings[option.name] = typed;
    }
    return { policy: this._shown, settings };
  }

  /** The member `prefill` of a request; null where nothing differs from the server's own. */
  request() {
    const { policy, settings } = this.values();
    const words = Object.entries(settings).map(([name, value]) => `${name}=${value}`);
    return [policy, ...words].filter(Boolean).join(" ") || null;
  }

  _show(settings) {
    this._shown = this._policy.value;
    this._form = this._forms.find(({ text }) => text === this._shown);
    this._controls = new Map(this._form.options.map((option) => [option.name, control(option)]));
    for (const { name } of this._form.options) {
      const field = this._controls.get(name);
      const standard = this._form.settings[name];
      if (field.tagName === "SELECT") field.value = settings[name] ?? standard;
      else {
        field.placeholder = standard;
        field.value = settings[name] ?? "";
      }
    }
    const labels = this._form.options.map(({ name, label }) => element("label", {}, `${label} `, this._controls.get(name)));
    this._fields.replaceChildren(...labels);
  }
}

function control({ name, meaning, type, choices, words, least, most }) {
  const about = { name: `prefill.${name}`, title: meaning };
  const offered = choices ? Object.fromEntries(choices.map((one) => [one, one])) : type === "boolean" ? YES_NO : null;
  if (offered) {
    const options = Object.entries(offered).map(([value, label]) => element("option", { value, textContent: label }));
    return element("select", about, ...options);
  }
  if (type === "string") return element("input", { ...about, type: "text" });
  if (words.length) return element("input", { ...about, type: "text", pattern: ["[0-9]+", ...words].join("|") });
  const whole = type === "integer";
  const range = { min: least ?? "", max: most ?? "", step: whole ? 1 : "any", inputMode: whole ? "numeric" : "decimal" };
  return element("input", { ...about, type: "number", ...range });
}

function typeOf({ type, words }, value) {
  if (words.includes(value)) return value;
  if (type === "boolean") return value === "true";
  return type === "string" ? value : Number(value);
}
