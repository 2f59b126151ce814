// The bit explorer's face. `floats.js` stands above this text, below what all share, and does the arithmetic.

const INTERESTING = [
  ["0.1", "0.1", "has no finite binary expansion: no format here holds it exactly"],
  ["1/3", "1/3", "the repeating fraction shows where each format cuts off"],
  ["π", "π", "fp4 calls it 3"],
  ["257", "257", "bf16 cannot count past 256 by ones"],
  ["2049", "2049", "fp16 cannot count past 2048 by ones"],
  ["448", "448", "the largest number of fp8 e4m3fn"],
  ["65504", "65504", "the largest number of fp16"],
  ["65520", "65520", "the smallest number that fp16 rounds to infinity"],
  ["1e-8", "1e-8", "a small gradient: gone in fp16, alive in bf16"],
  ["2⁻²⁴", "2^-24", "the smallest subnormal number of fp16"],
  ["−0", "-0", "zero keeps its sign bit"],
  ["∞", "∞", "formats without an infinity must make something else of it"],
  ["nan", "nan", "not a number: where all exponent bits are 1, a fraction that is not 0 says so"],
];
const COLUMNS = ["stored", "next lower", "next higher", "error", "relative error", "note"];
const NAMED = new Map([["π", Math.PI], ["pi", Math.PI], ["∞", Infinity], ["inf", Infinity], ["infinity", Infinity], ["nan", NaN]]);
const FRACTION_COLUMNS = 26; // a longer fraction (fp64) folds

// "1/3", "2^-24", "3*2^-5", "π", "-inf" → double; undefined where it is not a number that can be read.
export function parseNumber(text) {
  const [, sign, body] = text.trim().replace("−", "-").toLowerCase().match(/^([-+]?)(.*)$/s);
  const parts = body.replaceAll("_", "").replaceAll("**", "^").split(/([*/])/);
  let result = parseAtom(parts[0]);
  for (let i = 1; i < parts.length; i += 2) {
    const next = parseAtom(parts[i + 1]);
    if (next === undefined || result === undefined) return undefined;
    result = parts[i] === "*" ? result * next : result / next;
  }
  return result === undefined || sign !== "-" ? result : -result;
}

function parseAtom(text) {
  const atom = text.trim();
  if (NAMED.has(atom)) return NAMED.get(atom);
  const power = atom.match(/^(\d+)\^([-+]?\d+)$/);
  if (power) return power[1] === "2" && Math.abs(power[2]) < 1023 ? powerOfTwo(Number(power[2])) : power[1] ** power[2];
  return /^(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/.test(atom) ? Number(atom) : undefined;
}

// A double as the reader would type it.
function asTyped(x) {
  return Object.is(x, -0) ? "-0" : String(x).replace("NaN", "nan").replace("Infinity", "inf").replace("e+", "e");
}

// How many significant digits tell neighbouring numbers of a format apart; seven at least, for a stable look.
function digitsOf(format) {
  return Math.max(7, 1 + Math.ceil((1 + format.fraction_bits) * Math.log10(2)));
}

// A number, exact where nine digits hold it, else with `digits` significant digits.
export function shown(x, digits) {
  if (Number.isNaN(x)) return "nan";
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  if (x === 0) return Object.is(x, -0) ? "−0" : "0";
  const isShort = Number(x.toPrecision(9)) === x;
  const short = isShort || digits >= 17 ? x : Number(x.toPrecision(digits));
  const size = Math.abs(short);
  const text = size < 1e-4 || size >= 1e9 ? short.toExponential().replace("e+", "e") : String(short);
  return text.replaceAll("-", "−");
}

// Two digits say how large an error is; a large one keeps its whole part.
function shownError(x) {
  if (Number.isNaN(x)) return "";
  return shown(x >= 100 && x < 1e9 ? Math.round(x) : Number(x.toPrecision(2)), 2);
}

// One format: its bits as buttons, and the facts below them. `onPattern(format, pattern, words)` and `onValue(x)` report.
function makeRow(format, onPattern, onValue) {
  const [kind, detail] = [format.name.replace(/_.*/, ""), format.name.replace(/^[^_]*_?/, "")];
  const layout = detail || `e${format.exponent_bits}m${format.fraction_bits}`;
  let pattern = null;
  const bits = Array.from({ length: format.width + 1 }, (_, place) => makeBit(format, place));
  const flip = (place, to) => {
    const mask = 1n << BigInt(format.width - place);
    const old = pattern ?? 0n;
    const now = to === undefined ? old ^ mask : to ? old | mask : old & ~mask;
    onPattern(format, now, `${kind} ${layout}, ${bits[place].field} flipped`);
  };
  bits.forEach(({ node }, place) => node.addEventListener("click", () => flip(place)));
  const steps = ["lower", "higher"].map((direction) => make("button", "bx-step", { type: "button" }));
  const [stored, error, relative, note] = ["stored", "error", "relative", "note"].map((name) => make("span", `bx-${name}`));
  const facts = [stored, ...steps, error, relative, note];
  facts.forEach((node, i) => (node.dataset.column = COLUMNS[i]));
  const strip = make("div", "bx-bits", {}, [
    make("div", "bx-left", {}, bits.slice(0, 1 + format.exponent_bits).map(({ node }) => node)),
    make("div", "bx-right", {}, bits.slice(1 + format.exponent_bits).map(({ node }) => node)),
  ]);
  strip.addEventListener("keydown", (event) => onBitKey(event, bits, flip));
  const title = make("div", "bx-name", {}, [make("b", "", { textContent: kind }), make("small", "", { textContent: layout })]);
  const row = make("div", "bx-row", {}, [title, strip, make("div", "bx-facts", {}, facts)]);
  row.setAttribute("role", "group");
  row.dataset.format = format.name;
  row.setAttribute("aria-label", `${kind} ${layout}: ${format.exponent_bits} exponent bits, ${format.fraction_bits} fraction bits`);

  const digits = digitsOf(format);
  row.classList.toggle("bx-long", digits >= 17);
  let data;
  steps.forEach((node, i) => node.addEventListener("click", () => onValue(i ? data.above : data.below)));
  function update(value, given) {
    pattern = given === undefined ? encode(format, value) : given;
    data = bitRow(format, value, pattern);
    bits.forEach((bit, place) => bit.update(data.bits[place]));
    setText(stored, shown(data.stored, digits));
    stored.title = String(data.stored);
    [data.below, data.above].forEach((x, i) => {
      setText(steps[i], Number.isNaN(x) ? "none" : shown(x, digits));
      steps[i].disabled = Number.isNaN(x);
      steps[i].title = Number.isNaN(x) ? "" : `make the number ${x}`;
      steps[i].setAttribute("aria-label", `next ${i ? "higher" : "lower"} number of ${kind} ${layout}: ${shown(x, digits)}`);
    });
    setText(error, data.error === 0 ? "exact" : shownError(data.error));
    setText(relative, data.error === 0 ? "" : shownError(data.relative));
    setText(note, data.note);
  }
  return { node: row, update, name: format.name };
}

function makeBit(format, place) {
  const inExponent = place <= format.exponent_bits;
  const [field, number, count] = place === 0 ? ["sign", 1, 1]
    : inExponent ? ["exponent", place, format.exponent_bits]
    : ["fraction", place - format.exponent_bits, format.fraction_bits];
  const words = count === 1 && field === "sign" ? "sign bit" : `${field} bit ${number} of ${count}`;
  const node = make("button", `bx-bit bx-${field}`, { type: "button", tabIndex: place ? -1 : 0 });
  const update = (bit) => {
    if (node.dataset.bit === (bit ?? "none")) return;
    node.dataset.bit = bit ?? "none";
    node.textContent = bit ?? "·";
    node.setAttribute("aria-label", `${words}, value ${bit ?? "none"}, press to flip`);
  };
  return { node, field: words, update };
}

// Arrows walk along the bits (one stop for Tab a row), 0 and 1 set a bit; Space and Enter press it, as on any button.
function onBitKey(event, bits, flip) {
  const place = bits.findIndex(({ node }) => node === event.target);
  const last = bits.length - 1;
  const target = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last }[event.key];
  if (target !== undefined) focusBit(bits, Math.min(last, Math.max(0, target)));
  else if (event.key === "0" || event.key === "1") flip(place, event.key === "1");
  else if (event.key === "ArrowUp" || event.key === "ArrowDown") focusOtherRow(event);
  else return;
  event.preventDefault();
}

function focusBit(bits, place) {
  bits.forEach(({ node }, i) => (node.tabIndex = i === place ? 0 : -1));
  bits[place].node.focus();
}

// Up and down go to the bit that stands above or below on the screen.
function focusOtherRow(event) {
  const row = event.target.closest(".bx-row");
  const other = event.key === "ArrowUp" ? row.previousElementSibling : row.nextElementSibling;
  const candidates = [...(other?.querySelectorAll(".bx-bit") ?? [])];
  if (!candidates.length) return;
  const x = event.target.getBoundingClientRect().left;
  const distance = (node) => Math.abs(node.getBoundingClientRect().left - x);
  const nearest = candidates.reduce((best, node) => (distance(node) < distance(best) ? node : best));
  candidates.forEach((node) => (node.tabIndex = node === nearest ? 0 : -1));
  nearest.focus();
}

function makeHead(onText, onPreset) {
  const input = make("input", "bx-input", { type: "text", autocomplete: "off", spellcheck: false });
  input.setAttribute("aria-label", "Number: type 0.1, 1/3, 2^-24, π, inf or nan");
  input.addEventListener("input", () => onText(input.value));
  const status = makeStatus("bx-status");
  const presets = INTERESTING.map(([label, text, why]) => {
    const node = make("button", "bx-preset", { type: "button", textContent: label, title: why });
    node.setAttribute("aria-label", `${label}: ${why}`);
    node.addEventListener("click", () => onPreset(text, `${label}: ${why}.`));
    return node;
  });
  const field = make("label", "bx-field", {}, [make("span", "", { textContent: "Number" }), input]);
  const list = make("div", "bx-presets", {}, presets);
  list.setAttribute("role", "group");
  list.setAttribute("aria-label", "interesting numbers");
  return { node: make("div", "bx-head", {}, [field, status, list]), input, status };
}

function makeHeading() {
  const fields = ["sign", "exponent", "fraction"].map((name) => make("span", `ex-key bx-${name}`, { textContent: name }));
  const columns = COLUMNS.map((name) => make("span", "", { textContent: name === "note" ? "" : name }));
  const node = make("div", "bx-heading", {}, [make("div", "bx-keys", {}, fields), make("div", "bx-facts", {}, columns)]);
  node.setAttribute("aria-hidden", "true"); // every bit and number says its own name
  return node;
}

function render({ model, el }) {
  const formats = model.get("_formats").map(prepare);
  let value = fromWire(model.get("value"));
  let clicked = null; // the bits of a nan cannot be told from its value: keep those that the reader set
  const setValue = (x, words, fromInput = false) => {
    value = x;
    refresh(words, fromInput);
    model.set("value", toWire(x));
    model.save_changes();
  };
  const setPattern = (format, pattern, words) => {
    const x = decode(format, pattern);
    clicked = { name: format.name, pattern };
    setValue(x, `${words}. The number is ${asTyped(x)}.`);
  };
  const setAnyValue = (x, words, fromInput) => {
    clicked = null;
    setValue(x, words, fromInput);
  };
  const onText = (text) => {
    const x = parseNumber(text);
    head.input.setAttribute("aria-invalid", String(x === undefined));
    if (x !== undefined) setAnyValue(x, "", true);
    else setText(head.status, text.trim() ? "Not a number I can read. Try 0.1, 1/3, 2^-24, π, inf or nan." : "");
  };
  const head = makeHead(onText, (text, words) => setAnyValue(parseNumber(text), words));
  const rows = formats.map((format) =>
    makeRow(format, setPattern, (x) => setAnyValue(x, `The number is ${asTyped(x)}.`)));

  function refresh(words, fromInput = false) {
    if (!fromInput) {
      head.input.value = asTyped(value);
      head.input.setAttribute("aria-invalid", "false");
    }
    setText(head.status, words);
    for (const row of rows) row.update(value, clicked?.name === row.name ? clicked.pattern : undefined);
  }
  const onModel = () => {
    const x = fromWire(model.get("value"));
    if (Object.is(x, value)) return;
    value = x;
    clicked = null;
    refresh("");
  };
  const widest = Math.max(...formats.map((format) => format.exponent_bits));
  const longest = Math.min(FRACTION_COLUMNS, Math.max(...formats.map((format) => format.fraction_bits)));
  const table = make("div", "bx-table", {}, [makeHeading(), ...rows.map((row) => row.node)]);
  table.style.setProperty("--bx-left", 1 + widest);
  table.style.setProperty("--bx-right", longest);
  fill(el, "bit-explorer", [head.node, table]);
  refresh("Click a bit, or type a number.");
  model.on("change:value", onModel);
  return () => model.off("change:value", onModel);
}

export default { render };
