// The loss scale, slid across a gradient histogram. All counts come from Python (`scale_data`); this file only draws.

const SVG = "http://www.w3.org/2000/svg";
const FATES = ["flushed", "subnormal", "normal", "overflowed"];
const WORDS = ["become 0", "subnormal: fewer digits", "normal", "become inf"];
const [FIRST, LAST, TICK] = [-64, 48, 16]; // powers of two on the axis
const FOOT = 0.4; // of a power of ten under each bar, so that a single number has a height too
const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

export const power = (k) => "2" + [...String(k)].map((digit) => SUPERSCRIPTS[digit]).join("");

// Which of the FATES awaits the numbers from 2^place up. Half of the smallest number is where rounding to 0 begins.
export function fate(place, [smallest, normal, beyond]) {
  return place < smallest - 1 ? 0 : place < normal ? 1 : place < beyond ? 2 : 3;
}

export function percent(count, total) {
  const share = (100 * count) / total;
  if (count === 0 || count === total) return `${share} %`;
  if (share < 0.01) return "under 0.01 %";
  if (share > 99.99) return "over 99.99 %";
  return `${share < 1 || share > 99 ? share.toFixed(2) : share.toFixed(1)} %`;
}

// What to make of it: one inf skips the whole step, so that comes first.
export function verdict([flushed, subnormal, normal, overflowed], scale) {
  const total = flushed + subnormal + normal + overflowed;
  const name = `Scale ${power(scale)}`;
  if (overflowed) {
    return `${name}: ${overflowed.toLocaleString("en")} of ${total.toLocaleString("en")} become inf. The step is skipped, and the scale must come down.`;
  }
  const lost = flushed ? `${flushed.toLocaleString("en")} of ${total.toLocaleString("en")} become 0` : "no gradient is lost";
  return `${name}: ${lost}${subnormal ? `, and ${percent(subnormal, total)} lose digits` : ", and none loses digits"}. No overflow.`;
}

function make(tag, className, properties = {}, children = []) {
  const node = Object.assign(document.createElement(tag), { className, ...properties });
  // JupyterLab matches its shortcuts ("d d" deletes the cell) from the focused element upwards: stop it right there.
  if (["button", "input", "select"].includes(tag)) node.dataset.lmSuppressShortcuts = "true";
  node.append(...children);
  return node;
}

// A drawing that stretches with the page; its words stand beside it, in HTML, and keep their size.
function makeChart(className, parts) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `sx-chart ${className}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const paths = Object.fromEntries(parts.map((name) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", `sx-${name}`);
    svg.append(path);
    return [name, path];
  }));
  const draw = (width, height, shapes, words) => {
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("aria-label", words);
    for (const [name, d] of Object.entries(shapes)) paths[name].setAttribute("d", d);
  };
  return { svg, draw };
}

function makeSlider(name, [min, max], describe, onInput) {
  const input = make("input", "", { type: "range", min, max, step: 1 });
  const output = make("b", "");
  const node = make("label", "sx-field", {}, [make("span", "", { textContent: name }), output, input]);
  input.setAttribute("aria-label", name);
  input.addEventListener("input", () => onInput(Number(input.value)));
  const set = (value) => {
    input.value = value;
    output.textContent = describe(value);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  return { node, set };
}

function makeChoice(name, choices, onInput) {
  const select = make("select", "", {}, choices.map((text) => make("option", "", { value: text, textContent: text })));
  const node = make("label", "sx-field", {}, [make("span", "", { textContent: name }), select]);
  select.setAttribute("aria-label", name);
  select.addEventListener("change", () => onInput(select.value));
  return { node, set: (value) => (select.value = value) };
}

const rect = (x, y, width, height) => `M${x} ${y}h${width}v${height}h${-width}z`;
const clamp = (place) => Math.max(FIRST, Math.min(LAST, place)) - FIRST;

// Bars on a logarithmic axis of `rows` powers of ten, the foot included.
function histogramShapes({ first, counts }, borders, scale, rows) {
  const shapes = { flushed: "", subnormal: "", normal: "", overflowed: "" };
  counts.forEach((count, i) => {
    const place = first + i + scale;
    if (!count || place < FIRST || place >= LAST) return;
    const height = Math.log10(count) + FOOT;
    shapes[FATES[fate(place, borders)]] += rect(place - FIRST + 0.05, rows - height, 0.9, height);
  });
  const [smallest, normal, beyond] = [borders[0] - 1, borders[1], borders[2]].map(clamp);
  shapes.window = rect(smallest, 0, beyond - smallest, rows);
  shapes.heart = rect(normal, 0, beyond - normal, rows);
  return shapes;
}

// One column for each place of the slider; where anything overflows, the whole column says so.
function overviewShapes(casts, chosen) {
  const shapes = { flushed: "", subnormal: "", normal: "", overflowed: "" };
  casts.forEach((counts, i) => {
    const total = counts.reduce((a, b) => a + b);
    let y = 0;
    for (const f of counts[3] ? [3] : [2, 1, 0]) {
      const height = counts[3] ? 1 : counts[f] / total;
      shapes[FATES[f]] += rect(i + 0.06, y, 0.88, height);
      y += height;
    }
  });
  shapes.chosen = rect(chosen, 0, 1, 1);
  return shapes;
}

function overviewWords(casts, lowest) {
  const clean = casts.flatMap((counts, i) => (counts[0] === 0 && counts[3] === 0 ? [i + lowest] : []));
  if (!clean.length) return "Fates at each scale; at every one some gradients become 0 or inf";
  return `Fates at each scale; nothing becomes 0 or inf from ${power(clean[0])} to ${power(clean.at(-1))}`;
}

function reach(name, [smallest, normal, beyond]) {
  if (beyond > LAST) return `${name} has normal numbers from ${power(normal)} to ${power(beyond)}: beyond both ends of this axis.`;
  return `${name} (shaded, pale and full): subnormal from ${power(smallest)}, normal from ${power(normal)}, inf from about ${power(beyond)}.`;
}

function render({ model, el }) {
  const NAMES = ["power", "group", "number_format"];
  const data = model.get("data");
  const state = { sending: false };
  const change = (name, value) => {
    state[name] = value;
    redraw();
    state.sending = true; // each set comes back as a change
    model.set(name, value);
    state.sending = false;
    model.save_changes();
  };

  const [lowest, highest] = data.powers;
  const scale = makeSlider("Loss scale", data.powers, (k) => `${power(k)} = ${k < 0 ? `1/${2 ** -k}` : (2 ** k).toLocaleString("en")}`, (k) => change("power", k));
  const group = makeChoice("Gradients of", Object.keys(data.groups), (name) => change("group", name));
  const format = makeChoice("Format", Object.keys(data.formats), (name) => change("number_format", name));
  const summary = make("div", "sx-summary");
  summary.setAttribute("role", "status");
  const chart = makeChart("sx-histogram", ["window", "heart", ...FATES]);
  const overview = makeChart("sx-overview", [...FATES, "chosen"]);
  overview.svg.addEventListener("click", (event) => {
    const box = overview.svg.getBoundingClientRect();
    const i = Math.floor(((event.clientX - box.left) / box.width) * (highest - lowest + 1));
    change("power", Math.max(lowest, Math.min(highest, i + lowest)));
  });
  const numbers = FATES.map((name) => make("b", ""));
  const [most, window_] = [make("span", ""), make("div", "sx-reach")];

  function redraw() {
    const [of, borders] = [data.groups[state.group], data.formats[state.number_format]];
    const counts = of.casts[state.number_format][state.power - lowest];
    const total = counts.reduce((a, b) => a + b);
    const top = Math.ceil(Math.log10(Math.max(...of.counts)));
    const rows = top + FOOT;
    scale.set(state.power);
    group.set(state.group);
    format.set(state.number_format);
    summary.textContent = verdict(counts, state.power);
    counts.forEach((count, i) => (numbers[i].textContent = percent(count, total)));
    most.textContent = (10 ** top).toLocaleString("en");
    window_.textContent = reach(state.number_format, borders);
    chart.draw(LAST - FIRST, rows, histogramShapes(of, borders, state.power, rows), `Histogram by size. ${summary.textContent}`);
    const casts = of.casts[state.number_format];
    overview.draw(casts.length, 1, overviewShapes(casts, state.power - lowest), overviewWords(casts, lowest));
  }

  const text = (words) => make("span", "", { textContent: words });
  const axis = (name, ...children) => make("div", `sx-axis ${name}`, {}, children);
  const ticks = Array.from({ length: (LAST - FIRST) / TICK + 1 }, (_, i) => text(power(FIRST + i * TICK)));
  const keys = WORDS.map((words, i) => make("span", `sx-key sx-key-${FATES[i]}`, {}, [words, numbers[i]]));
  const body = make("div", "sx-body", {}, [
    make("div", "sx-controls", {}, [scale.node, group.node, format.node]), summary,
    make("div", "sx-stage", {}, [
      axis("sx-y", most, text("numbers"), text("1")), chart.svg, axis("sx-x", ...ticks),
      make("div", "sx-middle", { textContent: "size of a scaled gradient →" }),
    ]),
    make("div", "sx-legend", {}, keys), window_,
    make("div", "sx-all", {}, [
      make("div", "sx-title", {}, [make("b", "", { textContent: "Every scale at once" }), text(" (click one)")]), overview.svg,
      axis("sx-x2", text(power(lowest)), text("loss scale →"), text(power(highest))),
    ]),
  ]);
  el.classList.add("scale-explorer");
  el.replaceChildren(body);
  const read = () => {
    if (state.sending) return;
    for (const name of NAMES) state[name] = model.get(name);
    redraw();
  };
  read();
  for (const name of NAMES) model.on(`change:${name}`, read);
  return () => NAMES.forEach((name) => model.off(`change:${name}`, read));
}

export default { render };
