// Text that a button takes to the clipboard.

import { element } from "./dom.js";

const COPIED = 2000; // milliseconds that the button says so

/** button: its first child is the word "Copy". */
export async function copy(text, button) {
  const written = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  const copied = written || writeSelected(text);
  button.focus();
  button.firstChild.replaceWith(copied ? "Copied" : "Not copied");
  setTimeout(() => button.firstChild.replaceWith("Copy"), COPIED);
}

/** Without https only this older way is there. */
function writeSelected(text) {
  const field = element("textarea", { value: text, className: "unseen" });
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}
