// The film of a recomputed chain. Who holds what comes from Python, in units of one layer's input.

const FRAMES_A_SECOND = 10;
const RUNS = { forward: "runs forward", recompute: "runs forward again", backward: "runs backward" };
const LEGEND = { kept: "input of a segment, kept", inside: "saved inside a layer", forward: "runs forward",
  recompute: "runs again", backward: "runs backward", plain: "if everything is kept" };

// The frames of a chain of so many layers, one after the other. `ratio`: what a layer saves, in inputs.
export function play({ phases, films }, layers, every, ratio) {
  let end = 0;
  return films[every].filter(([, layer]) => layer < layers).map(([number, layer, boundaries, inside]) => {
    const [phase, duration] = phases[number];
    const start = end;
    end += duration;
    return { phase, layer, boundaries, inside, held: boundaries + inside * ratio, start, duration, end };
  });
}

export const peak = (frames) => frames.reduce((most, { held }) => Math.max(most, held), 0);

// Whose tensors are held when: one row a layer, the first at the bottom. The inputs of segments are thin lines.
function lifeShapes(frames, layers, every) {
  const shapes = { kept: "", inside: "", forward: "", recompute: "", backward: "" };
  for (const { phase, layer, boundaries, inside, start, duration } of frames) {
    for (let i = layer - inside + 1; i <= layer; i++) shapes.inside += rect(start, layers - 1 - i, duration, 0.94);
    for (let j = 0; j < boundaries; j++) shapes.kept += rect(start, layers - j * every - 0.3, duration, 0.3);
    shapes[phase] += rect(start + 0.12 * duration, layers - 0.76 - layer, 0.76 * duration, 0.46);
  }
  return shapes;
}

// The same, summed up: inputs of segments at the bottom, what is inside on top; the plain chain as a line.
function sumShapes(frames, plain, top) {
  const kept = frames.map((f) => rect(f.start, top - f.boundaries, f.duration, f.boundaries)).join("");
  const inside = frames.map((f) => rect(f.start, top - f.held, f.duration, f.held - f.boundaries)).join("");
  const outline = plain.map((f) => `L${f.start} ${top - f.held}h${f.duration}`).join("");
  return { kept, inside, plain: `M0 ${top}${outline}V${top}`, level: `M0 ${top - peak(frames)}H1e4` };
}

function peakShapes(peaks, every, top) {
  const bars = peaks.map((value, k) => rect(k + 0.12, top - value, 0.76, value));
  const [chosen] = bars.splice(every, 1);
  return { others: bars.join(""), chosen };
}

const keyed = (k) => (k ? `keep an input every ${plural(k, "layer")}` : "keep everything");

function tell(every, peaks, runs, plainRuns) {
  const words = keyed(every);
  return `${words[0].toUpperCase()}${words.slice(1)}: at most ${peaks[every]} inputs' worth held ` +
    `(${inPercent(peaks[every] / peaks[0])} of ${peaks[0]}), ${runs} layer runs` +
    `${runs > plainRuns ? ` instead of ${plainRuns}` : ""} (a backward run counts as two).`;
}

function build({ table, state, change, controls }) {
  let [frames, current, timer] = [[], 0, 0];
  const most = 3 * table.films.length;
  const moment = KINDS.slider({ label: "Moment", values: Array.from({ length: most }, (_, i) => i + 1),
    words: (i, last) => `${i} of ${last}` }, (i) => { stop(); show(i - 1); });
  const transport = makeButton("", "", toggle, "ex-button fx-play");
  const [status, now] = [makeStatus(), make("div", "fx-now")];
  const life = makeChart("fx", "life", ["kept", "inside", "forward", "recompute", "backward"], ["playhead"]);
  const total = makeChart("fx", "sum", ["kept", "inside"], ["plain", "level", "playhead"]);
  const bars = makeChart("fx", "bars", ["others", "chosen"]);
  bars.onColumn((k) => change({ every: k }));
  const [upper, highest, lowest, last] = ["fx-most", "fx-highest", "fx-lowest", "fx-last"].map((name) => span(name));

  function redraw() {
    const { layers, every, ratio } = state;
    const all = Array.from({ length: layers + 1 }, (_, k) => play(table, layers, k, ratio));
    const [plain, peaks] = [all[0], all.map(peak)];
    const ends = all.map((each) => each.at(-1).end);
    const top = Math.max(...peaks);
    frames = all[every];
    setText(status, tell(every, peaks, ends[every], ends[0]));
    life.draw(Math.max(...ends), layers, lifeShapes(frames, layers, every), "Which layer's tensors are held when");
    total.draw(Math.max(...ends), top, sumShapes(frames, plain, top), status.textContent);
    const best = peaks.indexOf(Math.min(...peaks));
    const words = `Peak for each K; the lowest is ${peaks[best]}, at ${keyed(best)}`;
    bars.draw(layers + 1, top, peakShapes(peaks, every, top), words);
    [upper.textContent, highest.textContent, last.textContent] = [`layer ${layers}`, top, `K = ${layers}`];
    const lowestOf = peaks.flatMap((value, k) => (value === peaks[best] ? [k || "keep all"] : []));
    lowest.textContent = `lowest: ${peaks[best]}, at ${best ? "K = " : ""}${lowestOf.join(", ")}`;
    show(Math.min(current, frames.length - 1));
  }
  function show(index) {
    current = index;
    const { phase, layer, boundaries, inside, held, start, duration } = frames[index];
    moment.set(index + 1, frames.length);
    for (const chart of [life, total]) chart.paths.playhead.setAttribute("d", `M${start + duration / 2} 0V1e4`);
    now.textContent = `Layer ${layer + 1} ${RUNS[phase]}. Held: ${plural(boundaries, "input")} of segments, ` +
      `the insides of ${plural(inside, "layer")}: ${held} together.`;
  }
  function stop() {
    clearInterval(timer);
    timer = 0;
    transport.textContent = "▶ Play";
  }
  function toggle() {
    if (timer) return stop();
    if (current === frames.length - 1) show(0);
    transport.textContent = "❚❚ Pause";
    timer = setInterval(() => {
      if (current + 1 < frames.length) show(current + 1);
      if (current + 1 >= frames.length) stop();
    }, 1000 / FRAMES_A_SECOND);
  }

  stop();
  const nodes = [
    make("div", "ex-controls fx-controls", {}, Object.values(controls).map(({ node }) => node)), status,
    make("div", "fx-stage", {}, [
      makeAxis("ex-y", upper, "layer 1"), life.svg,
      makeAxis("ex-y", highest, "held", "0"), total.svg,
      makeAxis("ex-x", "start", "time, in runs of a layer →", "end, with recompute"),
      make("div", "fx-peaks", {}, [make("b", "", { textContent: "Peak for each K" }), lowest, bars.svg, makeAxis("", "keep all", last)]),
    ]),
    make("div", "fx-transport", {}, [transport, moment.node, now]), makeLegend("fx", LEGEND),
  ];
  return { nodes, redraw, end: stop };
}

export default explorer("film", build);
