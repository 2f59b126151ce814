// The loss scale, slid across a gradient histogram. All counts come from Python (`scale_data`); this file only draws.

const NAMES = ["power", "group", "number_format"];
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

const choices = (names) => names.map((name) => [name, name]);

function render({ model, el }) {
  const { state, change, begin } = follow(model, NAMES, redraw);
  const data = model.get("data");
  const [lowest, highest] = data.powers;
  const inFull = (k) => `${power(k)} = ${k < 0 ? `1/${2 ** -k}` : (2 ** k).toLocaleString("en")}`;
  const controls = {
    power: makeSlider("Loss scale", data.powers, inFull, (k) => change({ power: k })),
    group: makeSelect("Gradients of", choices(Object.keys(data.groups)), (name) => change({ group: name })),
    number_format: makeSelect("Format", choices(Object.keys(data.formats)), (name) => change({ number_format: name })),
  };
  const status = makeStatus();
  const chart = makeChart("sx", "histogram", ["window", "heart", ...FATES]);
  const overview = makeChart("sx", "overview", FATES, ["chosen"]);
  overview.onColumn((i) => change({ power: i + lowest }));
  const numbers = FATES.map((name) => make("b", ""));
  const [most, reached] = [make("span", ""), make("div", "ex-note sx-reach")];

  function redraw() {
    const [of, borders] = [data.groups[state.group], data.formats[state.number_format]];
    const counts = of.casts[state.number_format][state.power - lowest];
    const total = counts.reduce((a, b) => a + b);
    const top = Math.ceil(Math.log10(Math.max(...of.counts)));
    const rows = top + FOOT;
    for (const name of NAMES) controls[name].set(state[name]);
    setText(status, verdict(counts, state.power));
    counts.forEach((count, i) => (numbers[i].textContent = percent(count, total)));
    most.textContent = (10 ** top).toLocaleString("en");
    reached.textContent = reach(state.number_format, borders);
    chart.draw(LAST - FIRST, rows, histogramShapes(of, borders, state.power, rows), `Histogram by size. ${status.textContent}`);
    const casts = of.casts[state.number_format];
    overview.draw(casts.length, 1, overviewShapes(casts, state.power - lowest), overviewWords(casts, lowest));
  }

  const ticks = Array.from({ length: (LAST - FIRST) / TICK + 1 }, (_, i) => power(FIRST + i * TICK));
  const keys = WORDS.map((words, i) => make("span", `ex-key sx-${FATES[i]}`, {}, [make("span", "", { textContent: words }), numbers[i]]));
  const title = [make("b", "", { textContent: "Every scale at once" }), make("span", "", { textContent: " (click one)" })];
  fill(el, "scale-explorer", [
    make("div", "ex-controls sx-controls", {}, NAMES.map((name) => controls[name].node)), status,
    make("div", "sx-stage", {}, [
      makeAxis("ex-y", most, "numbers", "1"), chart.svg, makeAxis("ex-x", ...ticks),
      makeAxis("ex-x sx-middle", "size of a scaled gradient →"),
    ]),
    make("div", "ex-legend sx-legend", {}, keys), reached,
    make("div", "sx-all", {}, [
      make("div", "sx-title", {}, title), overview.svg, makeAxis("", power(lowest), "loss scale →", power(highest)),
    ]),
  ]);
  return begin();
}

export default { render };
