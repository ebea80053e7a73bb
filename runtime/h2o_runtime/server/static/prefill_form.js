// The form's fields on reading the prompt, made of what GET /props says of the prefill policies' options.

import { byId, element } from "./dom.js";

const YES_NO = { true: "yes", false: "no" };

export class PrefillForm {
  /** options: as /props lists them; standard: the server's own configuration. */
  constructor(options, standard) {
    this._standard = standard;
    this._options = options.filter((option) => option.numeric); // the others are not for people who want an answer
    this._controls = new Map(this._options.map((option) => [option.name, control(option)]));
    this._labels = new Map(
      this._options.map((option) => [option.name, element("label", {}, `${option.label} `, this._controls.get(option.name))]),
    );
    byId("prefill-fields").replaceChildren(...this._labels.values());
  }

  /** Take over values by name; where there is none, the server's own stand in their place. */
  fill(values) {
    for (const option of this._options) {
      const field = this._controls.get(option.name);
      const standard = this._standard[option.name];
      if (field.tagName === "SELECT") field.value = values[option.name] ?? standard;
      else {
        field.placeholder = standard;
        field.value = values[option.name] ?? "";
      }
    }
    this.show();
  }

  /** Show the chosen policy's options only. */
  show() {
    for (const option of this._options) this._labels.get(option.name).hidden = !this._chosen(option);
  }

  /** Values that differ from the server's own, by name. all: those of the other policies too. */
  values(all = false) {
    const values = {};
    for (const option of this._options) {
      const { value } = this._controls.get(option.name);
      if (value === "" || !(all || this._chosen(option))) continue;
      const typed = typeOf(option, value);
      if (typed !== this._standard[option.name]) values[option.name] = typed;
    }
    return values;
  }

  _chosen(option) {
    return option.policies.includes(this._controls.get("policy").value);
  }
}

function control(option) {
  const { name, meaning, type, words, least, most } = option;
  const choices = option.choices ?? (type === "boolean" ? YES_NO : null);
  const about = { name: `prefill.${name}`, title: meaning };
  if (choices) {
    const offered = Object.entries(choices).map(([value, label]) => element("option", { value, textContent: label }));
    return element("select", about, ...offered);
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
