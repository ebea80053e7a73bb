// What a turn cost, in a row of small figures.

import { element } from "./dom.js";
import { count, counted, duration, percent, rate } from "./format.js";

const ENDS = { length: "at the limit", stopped: "stopped" }; // the others need no word

/** Elements for a <dl>, of what is known about an answer. */
export function figures({ firstMs, usage, timings, h2o, reason }) {
  const shown = [];
  const add = (name, value, more = "") =>
    value &&
    shown.push(
      element(
        "div",
        {},
        element("dt", { textContent: name }),
        element("dd", {}, value, more && element("span", { className: "quiet", textContent: ` ${more}` })),
      ),
    );
  if (firstMs !== undefined) add("First token", duration(firstMs));
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    add("Prompt", counted(usage.prompt_tokens, "token"), cached ? `${count(cached)} cached` : "");
  }
  if (timings) add("Read at", rate(timings.prompt_n, timings.prompt_per_second));
  if (timings) add("Answer", counted(timings.predicted_n, "token"), ENDS[reason]);
  else if (reason in ENDS) add("Answer", ENDS[reason]);
  if (timings) add("Written at", rate(timings.predicted_n, timings.predicted_per_second));
  if (timings?.draft_n) add("Read ahead", `${count(timings.draft_n_accepted)} of ${counted(timings.draft_n, "token")}`);
  if (h2o?.exact) add("Attention", "full");
  else if (h2o) add("Chunks", count(h2o.chunks), h2o.memory_size ? `memory ${count(h2o.memory_size)}` : "");
  if (h2o?.seen) {
    const widened = h2o.seen.widened ? `${percent(h2o.seen.widened)} read in full` : "";
    add("Attention seen", percent(h2o.seen.seen), widened || `at worst ${percent(h2o.seen.least_seen)}`);
    add("Attention missed", percent(h2o.seen.missed), `at most ${percent(h2o.seen.most_missed)}`);
  }
  return shown;
}
