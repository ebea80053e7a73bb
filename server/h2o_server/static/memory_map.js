// The whole prompt's memory on one strip, from its first token to its last.

export class MemoryMap {
  /** onPick: told the index of the token that was clicked. */
  constructor(canvas, onPick) {
    this._canvas = canvas;
    this._drawn = null; // the last arguments of draw()
    canvas.addEventListener("click", ({ offsetX }) => {
      const tokens = this._drawn?.[0].length ?? 0;
      onPick(Math.min(Math.floor((offsetX / canvas.clientWidth) * tokens), tokens - 1));
    });
    const redraw = () => this._drawn && this.draw(...this._drawn);
    new ResizeObserver(redraw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  /** As TokenText.shade; ends: where the chunks end. */
  draw(counts, heads, end, ends) {
    this._drawn = [counts, heads, end, ends];
    const { _canvas: canvas } = this;
    const width = (canvas.width = Math.round(canvas.clientWidth * devicePixelRatio));
    const height = (canvas.height = Math.round(canvas.clientHeight * devicePixelRatio));
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const x = (index) => Math.round((index / counts.length) * width);
    pen.fillStyle = style.getPropertyValue("--kept-map");
    for (let column = 0; column < width; column++) {
      const first = Math.floor((column / width) * counts.length);
      const last = Math.max(Math.floor(((column + 1) / width) * counts.length), first + 1);
      let kept = 0;
      for (let index = first; index < last; index++) kept += counts[index];
      pen.globalAlpha = Math.sqrt(kept / ((last - first) * heads)); // a lone token is to be seen, too
      pen.fillRect(column, 0, 1, height);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = style.getPropertyValue("--ahead");
    pen.fillRect(x(end), 0, width - x(end), height);
    pen.fillStyle = style.getPropertyValue("--border");
    for (const border of ends) pen.fillRect(x(border), 0, Math.ceil(devicePixelRatio), height);
  }
}
