"use strict";
// The page of `bert-keras serve`. In: the served signatures, in the form's data-served. What is typed goes to :predict; the first
// row of KINDS that fits the signature shows the answer. Every text becomes a text node: no text is ever read as HTML.

const $ = (id) => document.getElementById(id);
const SERVED = JSON.parse($("ask").dataset.served);
const MASK = "[MASK]";
function make(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
const say = (text) => make("p", { className: "said", dir: "auto" }, text);
const note = (text) => make("p", { className: "about" }, text);
const digits = (number) => String(Number(number.toPrecision(4)));
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const first = (vector) => vector.slice(0, 8).map(digits).join("  ");
const shorten = (text, most = 400) => (text.length > most ? `${text.slice(0, most)} ...` : text);

// A cell with a text, and a bar of which `share` is filled.
function bar(share, text = percent(share)) {
  const drawn = make("span", { className: "bar" });
  drawn.style.setProperty("--share", `${100 * share}%`);
  return make("td", { className: "share" }, text, drawn);
}

// A table of texts and of bars; the first text of a row names it.
function table(title, columns, rows) {
  const text = (value, at) => make(at ? "td" : "th", at ? {} : { scope: "row" }, make("bdi", {}, value));
  const cell = (value, at) => (value instanceof Node ? value : text(value, at));
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
  const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell))));
  const whole = make("table", {}, make("caption", {}, title), make("thead", {}, head), body);
  return make("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: title }, whole);
}

// A text with marked spans [start, end, label]. Python's characters count: an emoji is one, and two of JavaScript's units.
function mark(text, spans) {
  const letters = [...text], shown = make("p", { className: "marked", dir: "auto" });
  const labels = [...new Set(spans.map(([, , label]) => label))], cut = (from, to) => letters.slice(from, to).join("");
  let at = 0;
  for (const [start, end, label] of spans.sort((a, b) => a[0] - b[0])) {
    const marked = make("mark", {}, make("bdi", {}, cut(start, end)));
    if (label) marked.append(" ", make("small", {}, make("bdi", {}, label)));
    marked.style.setProperty("--mark", `var(--series-${1 + (labels.indexOf(label) % 6)})`);
    shown.append(cut(at, start), marked);
    at = end;
  }
  shown.append(cut(at));
  return shown;
}

// The probabilities by label, the largest first. chosen: the name and the place of a label -> true where the model chose it.
function labels({ probabilities, label_names }, chosen, names = label_names ?? probabilities.map((_, i) => `label ${i}`)) {
  const order = [...names.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
  const rows = order.map((i) => [`${chosen(names[i], i) ? "✓ " : ""}${names[i]}`, bar(probabilities[i])]);
  return table("Probabilities; ✓ is the model's choice", ["label", "probability"], rows);
}

const ONE_TEXT = ["A dull plot, and the acting is worse.", "It starts slowly 🥱, but the last hour is a joy."]
  .flatMap((text) => [{ text }, { sentence: text }]);
const YES = "Yes: the second text follows the first.", NO = "No: the second text does not follow the first.";

// What is served -> how it is shown. outputs, inputs: names that the signature has; rank: the sizes of the first output
// says: what a person does here; more: further examples; second: true for a second text, to compare
// show: the outputs of each text, and the typed texts by input -> elements
const KINDS = [{
  outputs: ["answer", "nbest_answers"], says: "Ask a question about a text. The model marks the answer in the text.",
  more: [{ question: "What do bees make?", context: "Bees visit flowers 🌼 all summer. From nectar they make honey." }],
  show([row], [{ context }]) {
    const best = row.nbest_answers.map((answer, i) => [answer, bar(row.nbest_probabilities[i])]);
    const found = row.start >= 0 ? [[row.start, row.end]] : [], none = row.no_answer_probability;
    return [
      found.length ? say(row.answer) : note("The model finds no answer in this text."), mark(context, found),
      table("The best answers", ["answer", "probability"], best.filter((_, i) => row.nbest_starts[i] >= 0)),
      ...(none === undefined ? [] : [note(`Probability that the text has no answer: ${percent(none)}`)]),
    ];
  },
}, {
  outputs: ["entity_text", "entity_label"], says: "Type a text. The model marks the names in it, each with its type.",
  more: [{ text: "Grace Hopper taught at Vassar College 🎓 before she moved to Washington." }],
  show([{ entity_text, entity_label, entity_start, entity_end, entity_score }], [texts]) {
    const found = [...entity_start.keys()].filter((i) => entity_start[i] >= 0);
    const marked = mark(Object.values(texts)[0], found.map((i) => [entity_start[i], entity_end[i], entity_label[i]]));
    const rows = found.map((i) => [entity_text[i], entity_label[i], bar(entity_score[i])]);
    return [marked, rows.length ? table("The names", ["name", "type", "probability"], rows) : note("The model finds no name.")];
  },
}, {
  outputs: ["filled", "mask_tokens"], says: `Type a text with one or more ${MASK}. The model says which words fit there.`,
  more: [{ text: `The ${MASK} shines at night, and the ${MASK} by day.` }],
  show([{ filled, mask_tokens, mask_scores }], [{ text }]) {
    const spans = [...text.matchAll(/\[MASK\]/g)].map(({ index }, i) => [[...text.slice(0, index)].length, `${i + 1}`]);
    const fits = (i) => mask_tokens[i].map((token, k) => [token, bar(mask_scores[i][k])]).filter(([token]) => token);
    const marked = mark(text, spans.map(([at, label]) => [at, at + MASK.length, label]));
    if (!spans.length) return [note(`The text has no ${MASK}: put one in place of a word.`), marked];
    return [say(filled), marked, ...spans.map((_, i) => table(`Words for mask ${i + 1}`, ["word", "probability"], fits(i)))];
  },
}, {
  outputs: ["ending", "probabilities"], says: "Type a beginning and some endings. The model chooses the best ending.",
  more: [{ context: "Sam fills the kettle", endings: ["and boils water.", "and drives off.", "on the moon.", "of the sea."] }],
  show: ([row], [{ endings }]) => [say(row.ending), labels(row, (_, i) => i === row.label, endings)],
}, {
  inputs: ["next_sentence"], outputs: ["label", "probabilities"], says: "Type two texts. Does the second follow the first?",
  more: [{ sentence: "The kettle began to whistle.", next_sentence: "Parliament met in March." }],
  show: ([row]) => [say(["is_next", "in_order"].includes(row.label) ? YES : NO), labels(row, (name) => name === row.label)],
}, {
  outputs: ["probabilities"], says: "The model chooses the label that fits, or several labels.",
  more: [...ONE_TEXT, { premise: "A child plays in the snow.", hypothesis: "It is winter." }],
  show([row]) {
    const said = row.labels ? row.labels.filter(Boolean).join(", ") || "No label applies." : String(row.label);
    return [say(said), labels(row, (name, i) => (row.labels ? row.labels[i] : name === row.label || i === row.label))];
  },
}, {
  outputs: ["score"], says: "The model answers with a score.",
  more: [{ sentence1: "A child plays in the snow.", sentence2: "A kid is outside in winter." }],
  show([{ score }]) {
    const range = chosenVersion().bounds;
    if (!range) return [say(digits(score)), note("A higher score means more of what the model learned to measure.")];
    const cells = [`${range[0]} to ${range[1]}`, bar((score - range[0]) / (range[1] - range[0]), digits(score))];
    return [say(digits(score)), table("The score on its range", ["range", "score"], [cells])];
  },
}, {
  outputs: ["embedding"], rank: 2, second: true,
  says: "Type a text. The model computes a vector: numbers for its meaning. With a second text, the page compares the two.",
  show(rows) {
    const vectors = rows.map((row) => row.embedding), [a, b] = vectors, size = (vector) => Math.hypot(...vector);
    const cells = vectors.map((vector, i) => [`text ${i + 1}`, digits(size(vector)), first(vector)]);
    const shown = table(`The vectors of ${a.length} numbers`, ["text", "length", "first numbers"], cells);
    if (!b) return [say(`A vector of ${a.length} numbers`), shown];
    const cosine = a.reduce((sum, x, i) => sum + x * b[i], 0) / (size(a) * size(b));
    return [say(`Cosine: ${cosine.toFixed(3)}`), note("1: the same direction. 0: unrelated. -1: opposite."), shown];
  },
}];

function kindOf({ inputs, outputs }) {
  const has = (names = [], there) => names.every((name) => name in there);
  const lists = Object.keys(outputs).some((name) => name.endsWith("_row_splits")); // these outputs have no row for each text
  const ranked = (row) => !row.rank || outputs[row.outputs[0]].shape?.length === row.rank;
  return KINDS.find((row) => !lists && has(row.outputs, outputs) && has(row.inputs, inputs) && ranked(row));
}
const typeOf = ({ dtype, shape }) => `${dtype} [${shape?.map((size) => (size < 0 ? "?" : size)).join(", ") ?? "any"}]`;
function showPlain(outputs, types) {
  const cells = (name) => [name, typeOf(types[name]), shorten(JSON.stringify(outputs[name]))];
  return [table("The outputs", ["name", "type", "value"], Object.keys(outputs).map(cells))];
}

let signature, kind, fields; // the chosen signature, its row of KINDS, and a field for each input by name
const chosenVersion = () => SERVED.versions[$("version").selectedIndex];
const choose = (select, names) => select.replaceChildren(...names.map((name) => make("option", {}, name)));
// The number of texts in an input for one example; 0 for an input that is typed as JSON.
const widthOf = ({ dtype, shape }) => (dtype !== "string" ? 0 : Math.max(0, { 1: 1, 2: shape?.[1] }[shape?.length] ?? 0));

// The field of an input. read: the value of its tensor; write: takes the value of an example. What is no text is JSON.
function field(name, spec) {
  const label = name.replaceAll("_", " "), width = widthOf(spec), nested = width && spec.shape.length === 2;
  const parts = nested ? Array.from({ length: width }, (_, i) => `, ${i + 1}`) : [width ? "" : `: ${typeOf(spec)} in JSON`];
  const names = [...parts.map((part) => label + part), ...(kind?.second ? [`a second ${label} to compare, or nothing`] : [])];
  const boxes = names.map((_, i) => make("textarea", { id: `${name}-${i}`, rows: 3, dir: "auto", spellcheck: false }));
  $("fields").append(...boxes.map((box, i) => make("p", {}, make("label", { htmlFor: box.id }, names[i]), box)));
  const texts = () => boxes.map((box) => box.value);
  const parsed = () => {
    try { return JSON.parse(texts()[0]); } catch {
      boxes[0].focus();
      throw new Error(`${label} is not JSON: write numbers in brackets, such as [[1, 2]].`);
    }
  };
  const read = () => (!width ? parsed() : nested ? [texts()] : texts().filter((text, i) => !i || text));
  const json = (value) => JSON.stringify(spec.shape?.length === 0 ? value : [value]);
  return { read, write: (value) => (width ? [value].flat() : [json(value)]).forEach((text, i) => (boxes[i].value = text)) };
}

function draw() {
  signature = chosenVersion().signatures[$("signature").value];
  kind = kindOf(signature);
  $("kind").textContent = kind?.says ?? "Fill in the inputs of the model.";
  $("fields").replaceChildren();
  const names = Object.keys(signature.example), { inputs } = signature;
  fields = named(names, (name) => field(name, inputs[name]));
  const fits = (name, example) => name in example && [example[name]].flat().length === widthOf(inputs[name]);
  const examples = [signature.example, ...(kind?.more ?? []).filter((one) => names.every((name) => fits(name, one)))];
  const write = () => names.forEach((name) => fields[name].write(examples[$("example").selectedIndex][name]));
  choose($("example"), examples.map((example) => shorten(String(Object.values(example)[0]), 60)));
  $("example").onchange = write;
  $("examples").hidden = examples.length < 2;
  write();
}
function drawVersion() {
  const typed = (name, _, all) => name !== "examples" || all.length === 1; // nobody types the bytes of tf.Examples
  const names = Object.keys(chosenVersion().signatures).filter(typed);
  choose($("signature"), names);
  if (names.includes("serving_default")) $("signature").value = "serving_default";
  $("choices").hidden = names.length < 2 && SERVED.versions.length < 2;
  draw();
}

const show = (...elements) => $("answer").replaceChildren(make("h2", {}, "Answer"), ...elements);
const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`; // for a shell
// Characters that nobody sees, and that could change what a terminal shows, are sent as \uXXXX.
const HIDDEN = /[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const escaped = (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;

const GONE = "The server does not answer. Is bert-keras serve still running? Start it, then ask again.";
const gone = () => Promise.reject(new Error(GONE));
const named = (names, valueOf) => Object.fromEntries(names.map((name) => [name, valueOf(name)]));
// {name: values} -> [{name: value}, ...]
const rowsOf = (columns) => Object.values(columns)[0].map((_, i) => named(Object.keys(columns), (name) => columns[name][i]));
async function ask() {
  const { outputs: types } = signature, names = Object.keys(types), shown = kind; // the form may change before the answer comes
  const inputs = named(Object.keys(fields), (name) => fields[name].read());
  const body = JSON.stringify({ signature_name: $("signature").value, inputs }).replace(HIDDEN, escaped);
  const version = $("version").selectedIndex ? `/versions/${chosenVersion().version}` : ""; // the first one is the newest
  const address = `${location.origin}${SERVED.address}${version}:predict`;
  $("same").textContent = "Both send what this page has sent.";
  $("curl").textContent = `curl -H 'Content-Type: application/json' -d ${quote(body)} ${quote(address)}`;
  [$("body").textContent, $("address").textContent] = [body, JSON.stringify(address)];
  show(note("The model reads the text ..."));
  const response = await fetch(address, { method: "POST", headers: { "Content-Type": "application/json" }, body }).catch(gone);
  const answer = await response.json().catch(gone);
  if (!response.ok) throw new Error(`The server refuses the request (${response.status}): ${shorten(answer.error)}`);
  const outputs = names.length > 1 ? answer.outputs : { [names[0]]: answer.outputs };
  return shown ? shown.show(rowsOf(outputs), rowsOf(inputs)) : showPlain(outputs, types);
}

$("fields").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});
$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if ($("answer").ariaBusy === "true") return;
  $("answer").ariaBusy = "true";
  const words = (error) => (error instanceof TypeError ? "The model has changed: reload this page." : error.message);
  const failed = (error) => [make("p", { className: "failed" }, make("strong", {}, "No answer. "), words(error))];
  show(...(await ask().catch(failed)));
  $("answer").ariaBusy = "false";
});
for (const block of document.querySelectorAll(".copied")) {
  const name = `Copy ${block.previousElementSibling.textContent}`, button = make("button", { type: "button" }, name);
  const copy = async () => (await navigator.clipboard.writeText(block.textContent)) ?? "Copied";
  const select = () => getSelection().selectAllChildren(block) ?? "Selected: press Ctrl+C";
  button.addEventListener("click", async () => {
    button.textContent = await copy().catch(select);
    setTimeout(() => (button.textContent = name), 3000);
  });
  block.after(button);
}
choose($("version"), SERVED.versions.map(({ version }, i) => `${version}${i ? "" : " (the newest)"}`));
$("version").onchange = drawVersion;
$("signature").onchange = draw;
drawVersion();
$("ask").hidden = false;
