// Buckets behind a backward pass. What is ready when, what shares a bucket and what a ring sends come from Python; here
// the buckets follow each other on the link. Times are in seconds.

const LEGEND = { computing: "computes (backward pass)", full: "a bucket is full", hidden: "on the link, hidden",
  seen: "on the link, everybody waits" };

// A bucket leaves when it is full and the one before it has arrived. `closed`: the gradients that close one.
export function queue(network, closed, perTokens, seconds, overlapped) {
  const backward = network.ready_s.at(-1) * perTokens;
  let [free, sent] = [overlapped ? 0 : backward, 0];
  const departures = closed.map((last) => {
    const full = network.ready_s[last] * perTokens;
    const [start, bytes] = [Math.max(free, full), network.bytes[last] - sent];
    free = start + seconds(bytes);
    sent += bytes;
    return { bytes, full, start, end: free };
  });
  return { departures, backward, end: Math.max(backward, free) };
}

export function run({ networks, rings }, offers, state, bucket) {
  const network = networks[state.network];
  const [messages, share] = rings[offers.world.values.indexOf(state.world)];
  const seconds = (bytes) => messages * state.alpha_us * 1e-6 + share * bytes / (state.gb_per_s * 1e9);
  const closed = network.closed[offers.bucket.values.indexOf(bucket)];
  return { ...queue(network, closed, 2 ** (state.tokens - 20), seconds, state.overlapped), messages: messages * closed.length };
}

function inWords(s) {
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

function summarize({ departures, messages, backward, end }) {
  const sending = sum(departures.map((each) => each.end - each.start));
  const hidden = sum(departures.map((each) => Math.max(0, Math.min(each.end, backward) - each.start)));
  return `${plural(departures.length, "bucket")}, ${inFull(messages)} messages from each rank. Of ${inWords(sending)} ` +
    `on the link, ${inPercent(sending ? hidden / sending : 1)} are hidden: the backward pass takes ` +
    `${inWords(backward)}, then all wait ${inWords(end - backward)}.`;
}

function build({ table, state, change, controls, offers }) {
  const { values, words } = offers.bucket;
  const status = makeStatus();
  const time = makeChart("bk", "time", ["computing", "hidden", "seen"], ["full", "level"]);
  const sizes = makeChart("bk", "sizes", ["computing", "seen", "otherComputing", "otherSeen"]);
  const [last, highest, best] = ["bk-last", "bk-highest", "bk-best"].map((name) => span(name));
  sizes.onColumn((i) => change({ bucket: values[i] }));

  function redraw() {
    const results = values.map((bucket) => run(table, offers, state, bucket));
    const chosen = values.indexOf(state.bucket);
    const ends = results.map((each) => each.end);
    const place = ends.indexOf(Math.min(...ends));
    setText(status, summarize(results[chosen]));
    time.draw(1000, 100, timeShapes(results[chosen]), `What leaves when. ${status.textContent}`);
    best.textContent = `lowest: ${inWords(ends[place])}, with ${words[place]}`;
    sizes.draw(results.length, 100, sizeShapes(results, chosen), `Time to the end for each bucket size; ${best.textContent}`);
    last.textContent = inWords(ends[chosen]);
    highest.textContent = inWords(Math.max(...ends));
  }

  const { overlapped, ...moved } = controls;
  const nodes = [
    make("div", "ex-controls bk-controls", {}, Object.values(moved).map(({ node }) => node)), overlapped.node, status,
    make("div", "bk-stage", {}, [
      makeAxis("ex-y bk-rows", "computes", "on the link"), time.svg,
      makeAxis("ex-x", "0", "time →", last),
      makeAxis("ex-y", highest, "0"), sizes.svg,
      makeAxis("ex-x", words[0], best, words.at(-1)),
    ]), makeLegend("bk", LEGEND),
  ];
  return { nodes, redraw };
}

export default explorer("bucket", build);
