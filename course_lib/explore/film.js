// The film of a recomputed chain. `film` mirrors `predict.Chain.film`, in units of one layer's input.

const FRAMES_A_SECOND = 10;
const NAMES = ["layers", "every", "ratio"];
const RUNS = { forward: "runs forward", recompute: "runs forward again", backward: "runs backward" };

// Frames in the order in which layers run; every = 0 keeps everything. `ratio`: what a layer saves, in inputs.
export function film(layers, every, ratio) {
  const frames = [];
  let start = 0;
  const add = (phase, layer, boundaries, inside) => {
    const duration = phase === "backward" ? 2 : 1;
    frames.push({ phase, layer, boundaries, inside, held: boundaries + inside * ratio, start, duration });
    start += duration;
  };
  for (let i = 0; i < layers; i++) add("forward", i, every && Math.floor(i / every) + 1, every ? 0 : i + 1);
  const size = every || layers;
  for (let segment = Math.ceil(layers / size) - 1; segment >= 0; segment--) {
    const [first, end] = [segment * size, Math.min(layers, (segment + 1) * size)];
    const boundaries = every && segment + 1;
    for (let i = first; every && i < end; i++) add("recompute", i, boundaries, i - first + 1);
    for (let i = end - 1; i >= first; i--) add("backward", i, boundaries, i - first + 1);
  }
  return frames;
}

export function peak(frames) {
  return Math.max(...frames.map((frame) => frame.held));
}

// Whose tensors are held when: one row a layer, the first at the bottom. The inputs of segments are thin lines.
function lifeShapes(frames, layers, every) {
  const shapes = { kept: "", inside: "", forward: "", recompute: "", backward: "" };
  for (const { phase, layer, boundaries, inside, start, duration } of frames) {
    const first = every ? Math.floor(layer / every) * every : 0;
    for (let i = first; i < first + inside; i++) shapes.inside += rect(start, layers - 1 - i, duration, 0.94);
    for (let j = 0; j < boundaries; j++) shapes.kept += rect(start, layers - j * every - 0.3, duration, 0.3);
    shapes[phase] += rect(start + 0.12 * duration, layers - 0.76 - layer, 0.76 * duration, 0.46);
  }
  return shapes;
}

// The same, summed up: inputs of segments at the bottom, what is inside on top; the plain chain as a line.
function sumShapes(frames, plain, ratio, top) {
  const kept = frames.map((f) => rect(f.start, top - f.boundaries, f.duration, f.boundaries)).join("");
  const inside = frames.map((f) => rect(f.start, top - f.held, f.duration, f.inside * ratio)).join("");
  const outline = plain.map((f) => `L${f.start} ${top - f.held}h${f.duration}`).join("");
  return { kept, inside, plain: `M0 ${top}${outline}V${top}`, level: `M0 ${top - peak(frames)}H1e4` };
}

function peakShapes(peaks, every, top) {
  const bar = (value, k) => rect(k + 0.12, top - value, 0.76, value);
  const others = peaks.map((value, k) => (k === every ? "" : bar(value, k))).join("");
  return { others, chosen: bar(peaks[every], every) };
}

function keyed(name) {
  return name ? `keep an input every ${plural(name, "layer")}` : "keep everything";
}

const LEGEND = { kept: "input of a segment, kept", inside: "saved inside a layer", forward: "runs forward",
  recompute: "runs again", backward: "runs backward", plain: "if everything is kept" };

function render({ model, el }) {
  const { state, change, begin } = follow(model, NAMES, redraw);
  let [frames, current, timer] = [[], 0, 0];

  const every = makeSlider("K: layers in a segment", [0, 32], (k) => (k ? String(k) : "keep everything"), (k) => change({ every: k }));
  const layers = makeSlider("N: layers in the chain", [2, 32], String, (n) => change({ layers: n }));
  const ratio = makeSlider("A layer saves", [1, 20], (r) => `${r} × its input`, (r) => change({ ratio: r }));
  const moment = makeSlider("Moment", [1, 128], (i, last) => `${i} of ${last}`, (i) => { stop(); show(i - 1); });
  const play = make("button", "ex-button fx-play", { type: "button" });
  const status = makeStatus();
  const now = make("div", "fx-now");
  const life = makeChart("fx", "life", ["kept", "inside", "forward", "recompute", "backward"], ["playhead"]);
  const sum = makeChart("fx", "sum", ["kept", "inside"], ["plain", "level", "playhead"]);
  const bars = makeChart("fx", "bars", ["others", "chosen"]);
  bars.onColumn((k) => change({ every: k }));
  const [most, highest, lowest, last] = ["fx-most", "fx-highest", "fx-lowest", "fx-last"].map((name) => make("span", name));

  function redraw() {
    state.every = Math.min(state.every, state.layers);
    frames = film(state.layers, state.every, state.ratio);
    const plain = film(state.layers, 0, state.ratio);
    const peaks = Array.from({ length: state.layers + 1 }, (_, k) => peak(film(state.layers, k, state.ratio)));
    const [top, runs, chosen] = [Math.max(...peaks), 4 * state.layers, peaks[state.every]];
    every.set(state.every, state.layers);
    layers.set(state.layers);
    ratio.set(state.ratio);
    const computed = state.every ? 4 * state.layers : 3 * state.layers;
    setText(status, `${keyed(state.every)[0].toUpperCase()}${keyed(state.every).slice(1)}: at most ${chosen} ` +
      `inputs' worth held (${Math.round((100 * chosen) / peaks[0])} % of ${peaks[0]}), ${computed} layer runs` +
      (state.every ? ` instead of ${3 * state.layers} (a backward run counts as two).` : " (a backward run counts as two)."));
    life.draw(runs, state.layers, lifeShapes(frames, state.layers, state.every), "Which layer's tensors are held when");
    sum.draw(runs, top, sumShapes(frames, plain, state.ratio, top), status.textContent);
    const best = peaks.indexOf(Math.min(...peaks));
    bars.draw(state.layers + 1, top, peakShapes(peaks, state.every, top), `Peak for each K; the lowest is ${peaks[best]}, at ${keyed(best)}`);
    [most.textContent, highest.textContent] = [`layer ${state.layers}`, `${top}`];
    const lowestOf = peaks.flatMap((value, k) => (value === peaks[best] ? [k || "keep all"] : []));
    lowest.textContent = `lowest: ${peaks[best]}, at ${best ? "K = " : ""}${lowestOf.join(", ")}`;
    last.textContent = `K = ${state.layers}`;
    show(Math.min(current, frames.length - 1));
  }
  function show(index) {
    current = index;
    const { phase, layer, boundaries, inside, held, start, duration } = frames[index];
    moment.set(index + 1, frames.length);
    const head = `M${start + duration / 2} 0V1e4`;
    for (const chart of [life, sum]) chart.paths.playhead.setAttribute("d", head);
    now.textContent = `Layer ${layer + 1} ${RUNS[phase]}. Held: ${plural(boundaries, "input")} of segments, ` +
      `the insides of ${plural(inside, "layer")}: ${held} together.`;
  }
  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "▶ Play";
  }
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (current === frames.length - 1) show(0);
    play.textContent = "❚❚ Pause";
    timer = setInterval(() => {
      if (current + 1 < frames.length) show(current + 1);
      if (current + 1 >= frames.length) stop();
    }, 1000 / FRAMES_A_SECOND);
  });

  fill(el, "film-explorer", [
    make("div", "ex-controls fx-controls", {}, [every.node, layers.node, ratio.node]), status,
    make("div", "fx-stage", {}, [
      makeAxis("ex-y", most, "layer 1"), life.svg,
      makeAxis("ex-y", highest, "held", "0"), sum.svg,
      makeAxis("ex-x", "start", "time, in runs of a layer →", "end, with recompute"),
      make("div", "fx-peaks", {}, [make("b", "", { textContent: "Peak for each K" }), lowest, bars.svg, makeAxis("", "keep all", last)]),
    ]),
    make("div", "fx-transport", {}, [play, moment.node, now]), makeLegend("fx", LEGEND),
  ]);
  stop();
  const end = begin();
  return () => {
    stop();
    end();
  };
}

export default { render };
