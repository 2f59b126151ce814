// Buckets behind a backward pass. `overlap` mirrors `predict.overlap`; times are in seconds.

const SVG = "http://www.w3.org/2000/svg";
const NUMBERS = { bucket: [10, 33], world: [1, 12], tokens: [8, 17], alpha_us: [0, 100] };
const STATE = ["network", "gb_per_s", "overlapped", ...Object.keys(NUMBERS)];

// gradients: [bytes, seconds until ready], in the order in which they get ready.
export function overlap(gradients, bucketBytes, worldSize, alpha, secondsPerByte, overlapped = true) {
  const backward = gradients[gradients.length - 1][1];
  const departures = [];
  let free = overlapped ? 0 : backward;
  let [count, bytes] = [0, 0];
  gradients.forEach(([size, full], i) => {
    count += 1;
    bytes += size;
    if (bytes < bucketBytes && i < gradients.length - 1) return;
    const start = Math.max(free, full);
    const sent = Math.round((2 * bytes * (worldSize - 1)) / worldSize);
    free = start + 2 * (worldSize - 1) * alpha + sent * secondsPerByte;
    departures.push({ count, bytes, full, start, end: free });
    [count, bytes] = [0, 0];
  });
  const sending = departures.reduce((sum, each) => sum + each.end - each.start, 0);
  const hidden = departures.reduce((sum, each) => sum + Math.max(0, Math.min(each.end, backward) - each.start), 0);
  return { departures, backward, sending, hidden, end: Math.max(backward, free),
    messages: 2 * (worldSize - 1) * departures.length };
}

export function bytesInWords(n) {
  const power = Math.min(3, Math.floor(Math.log2(n) / 10));
  return `${n / 2 ** (10 * power)} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

function seconds(s) {
  return s < 10 ? `${(1e3 * s).toPrecision(s < 1e-2 ? 2 : 3)} ms` : `${s.toFixed(1)} s`;
}

function make(tag, className, properties = {}, children = []) {
  const node = Object.assign(document.createElement(tag), { className, ...properties });
  // JupyterLab matches its shortcuts ("d d" deletes the cell) from the focused element upwards: stop it right there.
  if (["select", "input"].includes(tag)) node.dataset.lmSuppressShortcuts = "true";
  node.append(...children);
  return node;
}

// A drawing that stretches with the page; its words stand beside it, in HTML, and keep their size.
function makeChart(className, parts) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `bk-chart ${className}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const paths = parts.map((name) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", `bk-${name}`);
    svg.append(path);
    return [name, path];
  });
  const draw = (width, height, shapes, words) => {
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("aria-label", words);
    for (const [name, path] of paths) path.setAttribute("d", shapes[name]);
  };
  return { svg, draw };
}

function makeSlider(name, [min, max], describe, onInput) {
  const input = make("input", "", { type: "range", min, max, step: 1 });
  const output = make("b", "");
  const node = make("label", "bk-slider", {}, [make("span", "", { textContent: name }), output, input]);
  input.setAttribute("aria-label", name);
  input.addEventListener("input", () => onInput(Number(input.value)));
  const set = (value) => {
    input.value = value;
    output.textContent = describe(value);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  return { node, set };
}

function makeSelect(name, options, onInput) {
  const choices = options.map(([value, textContent]) => make("option", "", { value: String(value), textContent }));
  const select = make("select", "", { onchange: () => onInput(options[select.selectedIndex][0]) }, choices);
  select.setAttribute("aria-label", name);
  const node = make("label", "bk-select", {}, [make("span", "", { textContent: name }), select]);
  return { node, set: (value) => { select.value = String(value); } };
}

const rect = (x, y, width, height) => (width > 0 ? `M${x} ${y}h${width}v${height}h${-width}z` : "");

// One backward pass in a box of 1000 × 100: it computes (top), buckets get full (ticks), buckets travel (bottom).
function timeShapes({ departures, backward, end }) {
  const x = 1000 / end;
  const shapes = { computing: rect(0, 4, backward * x, 36), full: "", hidden: "", seen: "", level: `M${backward * x} 0V100` };
  for (const each of departures) {
    const [start, until, wall] = [each.start * x, each.end * x, backward * x];
    const gap = Math.min(1, 0.15 * (until - start));
    shapes.full += `M${each.full * x} 44v10`;
    shapes.hidden += rect(start, 60, Math.min(until, wall) - start - (until < wall ? gap : 0), 36);
    shapes.seen += rect(Math.max(start, wall), 60, until - Math.max(start, wall) - gap, 36);
  }
  return shapes;
}

// Time to the end for every bucket size, in a box of (number of sizes) × 100.
function sizeShapes(results, chosen) {
  const top = 100 / Math.max(...results.map((each) => each.end));
  const shapes = { computing: "", seen: "", otherComputing: "", otherSeen: "" };
  results.forEach(({ backward, end }, i) => {
    const [low, high] = i === chosen ? ["computing", "seen"] : ["otherComputing", "otherSeen"];
    shapes[low] += rect(i + 0.1, 100 - backward * top, 0.8, backward * top);
    shapes[high] += rect(i + 0.1, 100 - end * top, 0.8, (end - backward) * top);
  });
  return shapes;
}

function summarize(result) {
  const { departures, messages, backward, end, hidden, sending } = result;
  const share = sending ? Math.round((100 * hidden) / sending) : 100;
  const plural = departures.length === 1 ? "bucket" : "buckets";
  return `${departures.length} ${plural}, ${messages.toLocaleString("en")} messages from each rank. Of ${seconds(sending)} ` +
    `on the link, ${share} % are hidden: the backward pass takes ${seconds(backward)}, then all wait ${seconds(end - backward)}.`;
}

function makeLegend() {
  const words = { computing: "computes (backward pass)", full: "a bucket is full", hidden: "on the link, hidden",
    seen: "on the link, everybody waits" };
  const keys = Object.entries(words).map(([name, text]) => make("span", `bk-key bk-key-${name}`, { textContent: text }));
  return make("div", "bk-legend", { ariaHidden: "true" }, keys);
}

function render({ model, el }) {
  const state = {};
  let sending = false;
  const read = () => STATE.forEach((name) => { state[name] = model.get(name); });
  const change = (name, value) => {
    state[name] = value;
    redraw();
    sending = true; // what is set comes back as a change
    model.set(name, value);
    sending = false;
    model.save_changes();
  };
  const slider = (title, name, describe) => makeSlider(title, NUMBERS[name], describe, (value) => change(name, value));
  const thousands = (power) => (2 ** power).toLocaleString("en");
  const controls = {
    bucket: slider("Bucket size", "bucket", (power) => bytesInWords(2 ** power)),
    world: slider("Ranks", "world", thousands),
    tokens: slider("Tokens per rank", "tokens", thousands),
    alpha_us: slider("α, a message costs", "alpha_us", (us) => `${us} µs`),
    network: makeSelect("Model", Object.keys(model.get("_gradients")).map((name) => [name, name]), (name) => change("network", name)),
    gb_per_s: makeSelect("1/β, the link", model.get("_links").map((speed) => [speed, `${speed} GB/s`]), (speed) => change("gb_per_s", speed)),
  };
  const box = make("input", "", { type: "checkbox", onchange: () => change("overlapped", box.checked) });
  const early = make("label", "bk-check", {}, [box, make("span", "", { textContent: "send during the backward pass" })]);
  const summary = make("div", "bk-summary");
  summary.setAttribute("role", "status");
  const time = makeChart("bk-time", ["computing", "full", "hidden", "seen", "level"]);
  const sizes = makeChart("bk-sizes", ["computing", "seen", "otherComputing", "otherSeen"]);
  const [last, highest, best] = ["bk-last", "bk-highest", "bk-best"].map((name) => make("span", name));
  const [smallest, largest] = NUMBERS.bucket;
  sizes.svg.addEventListener("click", (event) => {
    const bounds = sizes.svg.getBoundingClientRect();
    const place = Math.floor(((event.clientX - bounds.left) / bounds.width) * (largest - smallest + 1));
    change("bucket", Math.max(smallest, Math.min(largest, smallest + place)));
  });

  function redraw() {
    const perToken = 2 ** state.tokens / model.get("_flops_per_s");
    const gradients = model.get("_gradients")[state.network].map(([bytes, work]) => [bytes, work * perToken]);
    const run = (power) => overlap(gradients, 2 ** power, 2 ** state.world, state.alpha_us / 1e6, 1 / (state.gb_per_s * 1e9), state.overlapped);
    const results = Array.from({ length: largest - smallest + 1 }, (_, i) => run(smallest + i));
    const chosen = state.bucket - smallest;
    const result = results[chosen];
    for (const [name, control] of Object.entries(controls)) control.set(state[name]);
    box.checked = state.overlapped;
    summary.textContent = summarize(result);
    time.draw(1000, 100, timeShapes(result), `What leaves when. ${summary.textContent}`);
    const ends = results.map((each) => each.end);
    const place = ends.indexOf(Math.min(...ends));
    best.textContent = `lowest: ${seconds(ends[place])}, with ${bytesInWords(2 ** (smallest + place))}`;
    sizes.draw(results.length, 100, sizeShapes(results, chosen), `Time to the end for each bucket size; ${best.textContent}`);
    last.textContent = seconds(result.end);
    highest.textContent = seconds(Math.max(...ends));
  }

  const axis = (name, ...children) => make("div", `bk-axis ${name}`, {}, children);
  const text = (words) => make("span", "", { textContent: words });
  const body = make("div", "bk-body", {}, [
    make("div", "bk-controls", {}, [controls.bucket.node, controls.alpha_us.node, controls.gb_per_s.node, controls.world.node,
      controls.tokens.node, controls.network.node]), early, summary,
    make("div", "bk-stage", {}, [
      axis("bk-y1", text("computes"), text("on the link")), time.svg,
      axis("bk-x", text("0"), text("time →"), last),
      axis("bk-y2", highest, text("0")), sizes.svg,
      axis("bk-x", text(bytesInWords(2 ** smallest)), best, text(bytesInWords(2 ** largest))),
    ]), makeLegend(),
  ]);
  el.classList.add("bucket-explorer");
  el.replaceChildren(body);
  const onModel = () => {
    if (sending) return;
    read();
    redraw();
  };
  read();
  redraw();
  for (const name of STATE) model.on(`change:${name}`, onModel);
  return () => STATE.forEach((name) => model.off(`change:${name}`, onModel));
}

export default { render };
