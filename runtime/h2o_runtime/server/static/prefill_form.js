// The form's fields on reading the prompt, made of what GET /props says of the prefill policies' options.

import { byId, element } from "./dom.js";

const YES_NO = { true: "yes", false: "no" };

export class PrefillForm {
  /** options and quality: as /props tells of them; standard: the server's own configuration. */
  constructor(options, standard, quality) {
    this._standard = standard;
    this._qualities = quality.choices; // what each stands for
    this._quality = control({ name: "quality", meaning: quality.meaning, choices: offered(quality.choices) });
    this._meaning = quality.meaning;
    this._note = element("p", { className: "quiet", id: "quality-note" });
    this._quality.setAttribute("aria-describedby", this._note.id);
    const hidden = !Object.keys(quality.choices).length;
    const qualityLabel = element("label", { hidden }, "Quality ", this._quality);
    this._note.hidden = hidden;
    this._options = options.filter((option) => option.numeric); // the others are not for people who want an answer
    this._controls = new Map(this._options.map((option) => [option.name, control(option)]));
    this._labels = new Map(
      this._options.map((option) => [option.name, element("label", {}, `${option.label} `, this._controls.get(option.name))]),
    );
    byId("prefill-fields").replaceChildren(qualityLabel, this._note, ...this._labels.values());
  }

  /** Take over values by name; where there is none, the server's own stand in their place. */
  fill(values) {
    this._quality.value = values.quality in this._qualities ? values.quality : "";
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

  /** Show the chosen policy's options only, and of them none that the quality stands for. */
  show() {
    for (const option of this._options) this._labels.get(option.name).hidden = !this._chosen(option);
    this._note.textContent = this._explained();
  }

  /** Values that differ from the server's own, by name. all: those of the other policies too. */
  values(all = false) {
    const values = this._quality.value ? { quality: this._quality.value } : {};
    for (const option of this._options) {
      const { value } = this._controls.get(option.name);
      if (value === "" || !(all || this._chosen(option))) continue;
      const typed = typeOf(option, value);
      if (typed !== this._standard[option.name]) values[option.name] = typed;
    }
    return values;
  }

  /** What the chosen quality sets, in the words of the fields that it replaces. */
  _explained() {
    const settled = this._qualities[this._quality.value];
    if (!settled) return `${this._meaning} Now the settings below apply.`;
    const set = this._options.filter(({ name }) => name in settled);
    const said = set.map(({ name, label, choices }) => `${label} ${choices?.[settled[name]] ?? settled[name]}`);
    return `${this._quality.value} sets: ${said.join(", ")}.`;
  }

  _chosen(option) {
    const settled = this._qualities[this._quality.value] ?? {};
    return !(option.name in settled) && option.policies.includes(settled.policy ?? this._controls.get("policy").value);
  }
}

/** The qualities by what a person reads, and the choice of none. */
function offered(qualities) {
  return { "": "set below", ...Object.fromEntries(Object.keys(qualities).map((name) => [name, name])) };
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
