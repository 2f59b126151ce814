// Buckets behind a backward pass. `overlap` mirrors `predict.overlap`; times are in seconds.

const NUMBERS = { bucket: [10, 33], world: [1, 12], tokens: [8, 17], alpha_us: [0, 100] };
const NAMES = ["network", "gb_per_s", "overlapped", ...Object.keys(NUMBERS)];

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
  return `${plural(departures.length, "bucket")}, ${messages.toLocaleString("en")} messages from each rank. Of ${seconds(sending)} ` +
    `on the link, ${share} % are hidden: the backward pass takes ${seconds(backward)}, then all wait ${seconds(end - backward)}.`;
}

const LEGEND = { computing: "computes (backward pass)", full: "a bucket is full", hidden: "on the link, hidden",
  seen: "on the link, everybody waits" };

function render({ model, el }) {
  const { state, change, begin } = follow(model, NAMES, redraw);
  const slider = (title, name, describe) => makeSlider(title, NUMBERS[name], describe, (value) => change({ [name]: value }));
  const thousands = (power) => (2 ** power).toLocaleString("en");
  const [networks, links] = [Object.keys(model.get("_gradients")), model.get("_links")];
  const controls = {
    bucket: slider("Bucket size", "bucket", (power) => bytesInWords(2 ** power)),
    world: slider("Ranks", "world", thousands),
    tokens: slider("Tokens per rank", "tokens", thousands),
    alpha_us: slider("α, a message costs", "alpha_us", (us) => `${us} µs`),
    network: makeSelect("Model", networks.map((name) => [name, name]), (name) => change({ network: name })),
    gb_per_s: makeSelect("1/β, the link", links.map((speed) => [speed, `${speed} GB/s`]), (speed) => change({ gb_per_s: speed })),
  };
  const box = make("input", "", { type: "checkbox", onchange: () => change({ overlapped: box.checked }) });
  const early = make("label", "bk-check", {}, [box, make("span", "", { textContent: "send during the backward pass" })]);
  const status = makeStatus();
  const time = makeChart("bk", "time", ["computing", "hidden", "seen"], ["full", "level"]);
  const sizes = makeChart("bk", "sizes", ["computing", "seen", "otherComputing", "otherSeen"]);
  const [last, highest, best] = ["bk-last", "bk-highest", "bk-best"].map((name) => make("span", name));
  const [smallest, largest] = NUMBERS.bucket;
  sizes.onColumn((i) => change({ bucket: smallest + i }));

  function redraw() {
    const perToken = 2 ** state.tokens / model.get("_flops_per_s");
    const gradients = model.get("_gradients")[state.network].map(([bytes, work]) => [bytes, work * perToken]);
    const run = (power) => overlap(gradients, 2 ** power, 2 ** state.world, state.alpha_us / 1e6, 1 / (state.gb_per_s * 1e9), state.overlapped);
    const results = Array.from({ length: largest - smallest + 1 }, (_, i) => run(smallest + i));
    const chosen = state.bucket - smallest;
    const result = results[chosen];
    for (const [name, control] of Object.entries(controls)) control.set(state[name]);
    box.checked = state.overlapped;
    setText(status, summarize(result));
    time.draw(1000, 100, timeShapes(result), `What leaves when. ${status.textContent}`);
    const ends = results.map((each) => each.end);
    const place = ends.indexOf(Math.min(...ends));
    best.textContent = `lowest: ${seconds(ends[place])}, with ${bytesInWords(2 ** (smallest + place))}`;
    sizes.draw(results.length, 100, sizeShapes(results, chosen), `Time to the end for each bucket size; ${best.textContent}`);
    last.textContent = seconds(result.end);
    highest.textContent = seconds(Math.max(...ends));
  }

  const order = ["bucket", "alpha_us", "gb_per_s", "world", "tokens", "network"];
  fill(el, "bucket-explorer", [
    make("div", "ex-controls bk-controls", {}, order.map((name) => controls[name].node)), early, status,
    make("div", "bk-stage", {}, [
      makeAxis("ex-y bk-rows", "computes", "on the link"), time.svg,
      makeAxis("ex-x", "0", "time →", last),
      makeAxis("ex-y", highest, "0"), sizes.svg,
      makeAxis("ex-x", bytesInWords(2 ** smallest), best, bytesInWords(2 ** largest)),
    ]), makeLegend("bk", LEGEND),
  ]);
  return begin();
}

export default { render };
