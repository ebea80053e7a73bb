// Small helpers around the document. Text from people and models enters it as text only, never as HTML.

const SLOW = 16; // milliseconds

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** An element; `properties` are set on it as they are. */
export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** A copy of a <template>: its root, and its elements by their data-part. */
export function fromTemplate(id) {
  const root = byId(id).content.firstElementChild.cloneNode(true);
  const parts = {};
  for (const part of root.querySelectorAll("[data-part]")) parts[part.dataset.part] = part;
  return { root, parts };
}

/** Let the browser draw and react before more work is done. */
export const breathe = () => new Promise((resolve) => setTimeout(resolve));

/** A function that asks for `work`, done once before the browser draws. Slow work leaves time for other things. */
export function soon(work) {
  let asked = false;
  let took = 0; // milliseconds
  const now = () => {
    asked = false;
    const begin = performance.now();
    work();
    took = performance.now() - begin;
  };
  return () => {
    if (asked) return;
    asked = true;
    if (took < SLOW) requestAnimationFrame(now);
    else setTimeout(() => requestAnimationFrame(now), 4 * took);
  };
}
