// The bit explorer's face. `floats.js` and `numerals.js` stand above this text, below what all share: with 2^64 numbers to
// choose from no table holds what each becomes, so this explorer computes in the browser what `bit_rows` does in Python.

const COLUMNS = ["stored", "next lower", "next higher", "error", "relative error", "note"];
const FRACTION_COLUMNS = 26; // a longer fraction (fp64) folds
const HELP = "Try 0.1, 1/3, 2^-24, π, inf or nan.";

// One bit as a button; `field` says which one it is.
function makeBit(format, place) {
  const inExponent = place <= format.exponent_bits;
  const [name, number, count] = inExponent ? ["exponent", place, format.exponent_bits]
    : ["fraction", place - format.exponent_bits, format.fraction_bits];
  const field = place ? `${name} bit ${number} of ${count}` : "sign bit";
  const node = makeButton("", "", null, `bx-bit bx-${place ? name : "sign"}`);
  const update = (bit = "none") => {
    if (node.dataset.bit === bit) return;
    node.dataset.bit = bit;
    node.textContent = bit === "none" ? "·" : bit;
    label(node, `${field}, value ${bit}, press to flip`);
  };
  return { node, field, update };
}

// One format: its bits as buttons, and the facts below them. `onPattern(format, pattern, words)` and `onValue(x)` report.
function makeRow(format, onPattern, onValue) {
  const [kind, detail] = [format.name.replace(/_.*/, ""), format.name.replace(/^[^_]*_?/, "")];
  const layout = detail || `e${format.exponent_bits}m${format.fraction_bits}`;
  const [called, digits] = [`${kind} ${layout}`, digitsOf(format)];
  let [data, pattern] = [{}, null];
  const bits = Array.from({ length: format.width + 1 }, (_, place) => makeBit(format, place));
  const flip = (place, to) => {
    const [mask, old] = [1n << BigInt(format.width - place), pattern ?? 0n];
    const now = { 0: old & ~mask, 1: old | mask }[to] ?? old ^ mask;
    onPattern(format, now, `${called}, ${bits[place].field} flipped`);
  };
  bits.forEach(({ node }, place) => node.addEventListener("click", () => flip(place)));
  const steps = ["below", "above"].map((side) => makeButton("", "", () => onValue(data[side]), "bx-step"));
  const [stored, error, relative, note] = ["stored", "error", "relative", "note"].map((name) => span(`bx-${name}`));
  const facts = [stored, ...steps, error, relative, note];
  facts.forEach((node, i) => { node.dataset.column = COLUMNS[i]; });
  const [left, right] = [[0, 1 + format.exponent_bits], [1 + format.exponent_bits]].map((ends) =>
    bits.slice(...ends).map(({ node }) => node));
  const strip = make("div", "bx-bits", {}, [make("div", "bx-left", {}, left), make("div", "bx-right", {}, right)]);
  strip.addEventListener("keydown", (event) => { // 0 and 1 set a bit; Space and Enter press it, as on any button
    if (!["0", "1"].includes(event.key)) return;
    flip(bits.findIndex(({ node }) => node === event.target), event.key);
    event.preventDefault();
  });
  const title = make("div", "bx-name", {}, [make("b", "", { textContent: kind }), make("small", "", { textContent: layout })]);
  const row = make("div", `bx-row${digits >= 17 ? " bx-long" : ""}`, {}, [title, strip, make("div", "bx-facts", {}, facts)]);
  row.dataset.format = format.name;
  label(row, `${called}: ${format.exponent_bits} exponent bits, ${format.fraction_bits} fraction bits`, "group");

  function update(value, given) {
    pattern = given === undefined ? encode(format, value) : given;
    data = bitRow(format, value, pattern);
    bits.forEach((bit, place) => bit.update(data.bits[place]));
    setText(stored, shown(data.stored, digits));
    stored.title = String(data.stored);
    [data.below, data.above].forEach((x, i) => {
      const none = Number.isNaN(x);
      setText(steps[i], none ? "none" : shown(x, digits));
      Object.assign(steps[i], { disabled: none, title: none ? "" : `make the number ${x}` });
      label(steps[i], `next ${i ? "higher" : "lower"} number of ${called}: ${shown(x, digits)}`);
    });
    setText(error, data.error === 0 ? "exact" : shownError(data.error));
    setText(relative, data.error === 0 ? "" : shownError(data.relative));
    setText(note, data.note);
  }
  return { node: row, bits: bits.map(({ node }) => node), update, name: format.name };
}

function makeHead(presets, onText, onPreset) {
  const input = make("input", "bx-input", { type: "text", autocomplete: "off", spellcheck: false });
  label(input, "Number: type 0.1, 1/3, 2^-24, π, inf or nan");
  input.addEventListener("input", () => onText(input.value));
  const status = makeStatus("bx-status");
  const buttons = presets.map(([name, text, why]) => {
    const node = makeButton(name, `${name}: ${why}`, () => onPreset(text, `${name}: ${why}.`), "bx-preset");
    return Object.assign(node, { title: why });
  });
  const field = make("label", "bx-field", {}, [span("", "Number"), input]);
  const list = label(make("div", "bx-presets", {}, buttons), "interesting numbers", "group");
  return { node: make("div", "bx-head", {}, [field, status, list]), input, status };
}

function makeHeading() {
  const fields = ["sign", "exponent", "fraction"].map((name) => span(`ex-key bx-${name}`, name));
  const columns = COLUMNS.map((name) => span("", name === "note" ? "" : name));
  return make("div", "bx-heading", { ariaHidden: "true" }, // every bit and number says its own name
    [make("div", "bx-keys", {}, fields), make("div", "bx-facts", {}, columns)]);
}

function build({ table: { formats, presets }, state, change }) {
  // What the reader just did: the words for it, the text that must stay, and the bits that were clicked, which a nan's value
  // does not tell. Whatever Python sets has none of this.
  let act = { words: "Click a bit, or type a number." };
  const setValue = (x, now) => {
    act = now;
    change({ value: toWire(x) });
  };
  const onText = (text) => {
    const x = parseNumber(text);
    if (x !== undefined) return setValue(x, { words: "", typed: true });
    head.input.setAttribute("aria-invalid", "true");
    setText(head.status, text.trim() ? `Not a number I can read. ${HELP}` : "");
  };
  const onPattern = (format, pattern, words) => {
    const x = decode(format, pattern);
    setValue(x, { words: `${words}. The number is ${asTyped(x)}.`, format: format.name, pattern });
  };
  const head = makeHead(presets, onText, (text, words) => setValue(parseNumber(text), { words }));
  const all = formats.map(prepare);
  const rows = all.map((format) => makeRow(format, onPattern, (x) => setValue(x, { words: `The number is ${asTyped(x)}.` })));

  function redraw() {
    const value = fromWire(state.value);
    if (!act.typed) head.input.value = asTyped(value);
    head.input.setAttribute("aria-invalid", "false");
    setText(head.status, act.words);
    for (const row of rows) row.update(value, act.format === row.name ? act.pattern : undefined);
    act = { words: "" };
  }
  const grid = make("div", "bx-table", {}, [makeHeading(), ...rows.map((row) => row.node)]);
  grid.style.setProperty("--bx-left", 1 + Math.max(...all.map((format) => format.exponent_bits)));
  grid.style.setProperty("--bx-right", Math.min(FRACTION_COLUMNS, Math.max(...all.map((format) => format.fraction_bits))));
  walk(grid, rows.map((row) => row.bits));
  return { nodes: [head.node, grid], redraw };
}

export default explorer("bit", build, ["value"]);
