// Draws the lines of one head. The weights are bytes [layers, heads, tokens, tokens], deflated, in base64.
"use strict";
(async () => {
  const ROW = 22, SIDE = 125, WIDTH = 360, LEAST = 3; // a line of under 3/255 would not be seen
  const byId = (id) => document.getElementById(id);
  const { tokens, layers, heads, weights } = JSON.parse(byId("data").textContent);
  const packed = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(unpacked).arrayBuffer());
  const size = tokens.length, choice = { layer: byId("layer"), head: byId("head") };
  let chosen = null; // the token whose lines are shown alone

  const make = (name, attributes, parent, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  const short = (token) => (token.length > 15 ? token.slice(0, 14) + "…" : token);
  const middle = (i) => ROW * (i + 0.5);
  const rowOf = (i) => {
    const head = choice.layer.selectedIndex * heads + choice.head.selectedIndex;
    return bytes.subarray((head * size + i) * size, (head * size + i + 1) * size);
  };
  const strongest = (i) => {
    const row = rowOf(i);
    const best = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 3).filter((j) => row[j] >= LEAST);
    return `“${tokens[i]}” reads ` + best.map((j) => `“${tokens[j]}” ${Math.round(row[j] / 2.55)} %`).join(", ");
  };

  const about = { viewBox: `0 0 ${WIDTH} ${ROW * size}`, role: "group", "aria-label": "Tokens and their weights" };
  const svg = make("svg", about, byId("picture"));
  const lines = make("g", { "aria-hidden": "true" }, svg);
  const buttons = tokens.map((token, i) => {
    const button = make("g", { role: "button", tabindex: i ? -1 : 0 }, svg);
    make("rect", { x: 0, y: ROW * i, width: SIDE, height: ROW, fill: "transparent" }, button);
    make("text", { x: SIDE - 6, y: middle(i), "text-anchor": "end", "dominant-baseline": "central" }, button, short(token));
    const read = { x: WIDTH - SIDE + 6, y: middle(i), "dominant-baseline": "central", "aria-hidden": "true" };
    make("text", read, svg, short(token));
    button.addEventListener("pointerenter", () => show(i));
    button.addEventListener("focus", () => show(i));
    return button;
  });

  const draw = () => {
    lines.replaceChildren();
    tokens.forEach((_, i) => {
      buttons[i].setAttribute("aria-pressed", String(i === chosen));
      buttons[i].setAttribute("aria-label", strongest(i));
      if (chosen !== null && chosen !== i) return;
      rowOf(i).forEach((weight, j) => {
        if (weight < LEAST) return;
        const share = weight / 255, ends = { x1: SIDE, y1: middle(i), x2: WIDTH - SIDE, y2: middle(j) };
        make("line", { ...ends, "stroke-width": 0.5 + 7 * share, "stroke-opacity": 0.25 + 0.75 * share }, lines);
      });
    });
    const head = `Layer ${choice.layer.value} of ${layers}, head ${choice.head.value} of ${heads}. `;
    byId("said").textContent = head + (chosen === null ? "All tokens." : strongest(chosen) + ".");
  };
  const show = (i) => {
    chosen = i;
    draw();
  };
  const focus = (i) => {
    buttons.forEach((button, j) => button.setAttribute("tabindex", i === j ? 0 : -1));
    buttons[i].focus();
  };
  const step = (by) => {
    const now = choice.layer.selectedIndex * heads + choice.head.selectedIndex;
    const next = (now + by + layers * heads) % (layers * heads);
    choice.layer.selectedIndex = Math.floor(next / heads);
    choice.head.selectedIndex = next % heads;
    draw();
  };
  const picture = byId("picture"); // Chromium would make an <svg> with these listeners a stop of the Tab key
  picture.addEventListener("pointerleave", () => show(null));
  picture.addEventListener("focusout", () => show(null));
  picture.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(event.target);
    const moves = {
      ArrowUp: () => focus((at + size - 1) % size),
      ArrowDown: () => focus((at + 1) % size),
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      Escape: () => show(null),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  });
  for (const select of Object.values(choice)) select.addEventListener("change", draw);
  byId("explore").hidden = false;
  draw();
})();
