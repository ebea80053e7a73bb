// The token view of a report: one text, shaded by what each contestant made of it.
"use strict";
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const names = Object.keys(data.seen ?? {});
  const [contestant, shade, told, tokens] = ["contestant", "shade", "told", "tokens"].map((id) => document.getElementById(id));
  const spans = (data.tokens ?? []).map((text) => Object.assign(document.createElement("span"), { textContent: text }));

  // The first contestant is full attention. Token 0 has no loss: nothing stands before it.
  const change = (index) => {
    const [losses, truth] = [contestant.value, names[0]].map((name) => data.seen[name].nll);
    return index ? losses[index - 1] - truth[index - 1] : 0;
  };
  const kept = (index) => data.seen[contestant.value].kept?.[index] ?? 0;

  const colour = (index) => {
    if (shade.value === "kept") return `rgba(31, 97, 141, ${kept(index)})`;
    const value = change(index);
    const strength = Math.min(Math.abs(value) / 2, 1);
    return value > 0 ? `rgba(192, 57, 43, ${strength})` : `rgba(39, 174, 96, ${strength})`;
  };
  const paint = () => spans.forEach((span, index) => { span.style.backgroundColor = colour(index); });
  const tell = (event) => {
    const index = spans.indexOf(event.target);
    if (index < 0) return;
    const share = data.seen[contestant.value].kept ? `, in ${(100 * kept(index)).toFixed(0)} % of the lists` : "";
    told.textContent = `token ${index}: loss ${change(index) >= 0 ? "+" : ""}${change(index).toFixed(2)}${share}`;
  };

  if (names.length && spans.length) {
    document.getElementById("token-view").hidden = false;
    contestant.append(...names.map((name) => new Option(name, name)));
    contestant.value = names[1] ?? names[0];
    tokens.append(...spans);
    contestant.addEventListener("change", paint);
    shade.addEventListener("change", paint);
    tokens.addEventListener("mouseover", tell);
    paint();
  }
}
