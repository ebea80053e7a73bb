// Numbers as people read them.

const TELLING = 16; // tokens

/** 4391 → "4,391". */
export const count = (number) => Math.round(number).toLocaleString("en");

/** "1 token", "2 tokens". */
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Milliseconds → "85 ms", "1.24 s", "92 s". */
export function duration(milliseconds) {
  if (milliseconds < 995) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  return `${seconds.toFixed(seconds < 9.95 ? 2 : seconds < 99.5 ? 1 : 0)} s`;
}

/** "6.4 tokens/s", "14,200 tokens/s". Empty for so few tokens that their time says nothing of others. */
export function rate(tokens, perSecond) {
  if (!(tokens >= TELLING)) return "";
  return `${perSecond < 9.95 ? perSecond.toFixed(1) : count(perSecond)} tokens/s`;
}

/** 0.934 → "93.4 %". */
export const percent = (share) => `${(100 * share).toFixed(1)} %`;
