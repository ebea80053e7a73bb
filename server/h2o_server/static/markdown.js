// An answer in Markdown that grows. Blocks that are complete are never touched again, and of the last ones only what
// differs: selections and focus stay, and a screen reader hears what is new.

import { copy } from "./clipboard.js";
import { blocks } from "./markdown_blocks.js";

export class Markdown {
  constructor(root) {
    this._root = root;
    this._root.addEventListener("click", copyOnClick);
    this.clear();
  }

  clear() {
    this._root.replaceChildren();
    this._blocks = 0; // that are complete
    this._start = 0; // of the text after them
  }

  /** text: the whole text, which begins with what was shown before. open: whether more will come. */
  show(text, open) {
    const lines = text.slice(this._start).split("\n");
    const found = blocks(lines.map(withoutReturn), open);
    patch(this._root, this._blocks, found.map(({ node }) => node));
    if (!found.length) return;
    const last = found.at(-1).at;
    if (last + 1 >= lines.length) return; // its first line may still change what it is
    this._blocks += found.length - 1;
    for (const line of lines.slice(0, last)) this._start += line.length + 1;
  }
}

const withoutReturn = (line) => (line.endsWith("\r") ? line.slice(0, -1) : line);

/** Make the children of `parent` after the first `start` equal to `nodes`. */
function patch(parent, start, nodes) {
  const shown = [...parent.childNodes].slice(start);
  nodes.forEach((node, index) => {
    const old = shown[index];
    if (!old) parent.append(node);
    else if (!old.isEqualNode(node)) become(old, node);
  });
  for (const old of shown.slice(nodes.length)) old.remove();
}

function become(old, node) {
  if (isAlone(old) && isAlone(node) && node.data.startsWith(old.data)) {
    old.appendData(node.data.slice(old.data.length));
  } else if (old.nodeType === Node.ELEMENT_NODE && old.cloneNode().isEqualNode(node.cloneNode())) {
    patch(old, 0, [...node.childNodes]);
  } else {
    old.replaceWith(node);
  }
}

/** Whether it is all the text of its parent. Beside thousands of others, Chromium takes a second to append to one. */
const isAlone = (node) => node.nodeType === Node.TEXT_NODE && !node.previousSibling && !node.nextSibling;

function copyOnClick({ target }) {
  if (target.matches("button.copy")) copy(target.closest(".code").querySelector("code").textContent, target);
}
