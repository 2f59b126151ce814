// Three tiers of memory. Bytes, intensities and speeds come from Python; here they are looked up, added and divided.

const STATES = ["weights", "gradients", "optimizer", "checkpoints"];
const ROADS = ["card", "link", "processor", "disk"];
const WORDS = ["weights", "gradients", "optimizer state", "checkpoints", "passing through"];
const PRESETS = {
  "All on the GPU": ["GPU", "GPU", "GPU", "GPU"],
  "ZeRO-Offload": ["GPU", "main memory", "main memory", "GPU"],
  "ZeRO-Infinity": ["disk", "disk", "disk", "main memory"],
};

// What is shown: for each tier its bytes by state, their sum and whether they fit; where the seconds of a step go.
export function look(table, offers, state) {
  const s = offers.sequences.values.indexOf(state.sequences);
  const [gpu, memory, disk] = [table.gpus[state.gpu], table.memories[state.memory], table.disks[state.disk]];
  const sizes = [...table.states[state.model], table.checkpoints[state.model][s]];
  const tiers = table.places.map((place, i) => {
    const passing = i ? 0 : table.passing[state.model][s][+(state.weights !== place)];
    const held = [...STATES.map((name, j) => (state[name] === place ? sizes[j] : 0)), passing];
    const [capacity, speed] = [gpu, memory, disk][i];
    return { place, held, total: sum(held), capacity, speed, fits: sum(held) <= capacity };
  });
  const out = STATES.map((name) => state[name] !== table.places[0]);
  const far = state.processor && out[2]; // the update has left the card
  const over = [3 * out[0] + (out[0] !== far), out[1] + (out[1] !== far), 2 * (out[2] && !far), 2 * out[3]];
  const reads = [4, 2, 2, 2]; // and writes, of what lies on disk
  const onDisk = sizes.map((size, j) => (state[STATES[j]] === table.places[2] ? reads[j] * size : 0));
  const bytes = [0, sum(sizes.map((size, j) => over[j] * size)), far ? (table.update / 2) * sizes[0] : 0, sum(onDisk)];
  const speeds = [gpu[2], table.links[state.link], memory[1], disk[1]];
  const seconds = [table.flops[state.model][s], ...bytes.slice(1)].map((work, i) => work / speeds[i]);
  return { tiers, bytes, speeds, seconds, efficiency: seconds[0] / sum(seconds) };
}

const rate = (speed) => `${fixed(speed / 1e9, speed < 1e10 ? 1 : 0)} GB/s`;
const inPlace = { GPU: "on the GPU", "main memory": "in main memory", disk: "on disk" };
const took = (seconds) => `${fixed(seconds, 2)} s`;

export function verdict({ tiers, seconds, efficiency }, { model }) {
  const full = tiers.filter(({ fits }) => !fits).map(({ place, total, capacity }) =>
    `${gib(total)} do not fit ${inPlace[place]}, which has ${gib(capacity)}`);
  if (full.length) return `${model}: ${full.join("; ")}.`;
  if (efficiency === 1) return `${model}: all of it fits on the GPU, and nothing travels.`;
  return `${model}: everything fits. A step takes ${took(sum(seconds))} if nothing is hidden, and the card computes ` +
    `in ${took(seconds[0])} of them: ${inPercent(efficiency)}.`;
}

function makeTier(table, name) {
  const [stack, made] = [makeStack(table.colors), span("tx-made")];
  const title = make("div", "tx-tier", {}, [make("b", "", { textContent: name }), made]);
  return { name, stack, made, nodes: [title, stack.track, stack.total] };
}

function makeRoad(name) {
  const [bar, share, where] = [make("div", `tx-bar tx-${name}`), span("tx-share"), span("tx-where")];
  const track = make("div", "tx-gauge", {}, [bar, share]);
  return { name, bar, share, where, track, nodes: [make("b", "", { textContent: `The ${name}` }), track, where] };
}

function build({ table, state, change, controls, offers }) {
  const presets = Object.entries(PRESETS).map(([name, places]) =>
    makeButton(name, "", () => change(Object.fromEntries(STATES.map((each, i) => [each, places[i]])))));
  const status = makeStatus();
  const tiers = table.places.map((place) => makeTier(table, place === "GPU" ? "GPU memory" : place));
  const paths = [span("tx-path"), span("tx-path")];
  const board = make("div", "tx-board", {}, [
    ...tiers[0].nodes, paths[0], ...tiers[1].nodes, paths[1], ...tiers[2].nodes,
  ]);
  const keys = make("div", "tx-presets", {}, WORDS.map((words, i) => makeKey(words, table.colors[i])));
  const roads = ROADS.map(makeRoad);
  const costs = make("div", "tx-board tx-costs", {}, roads.flatMap(({ nodes }) => nodes));

  function redraw() {
    const shown = look(table, offers, state);
    setText(status, verdict(shown, state));
    shown.tiers.forEach(({ held, capacity, speed }, i) => {
      const { name, stack, made } = tiers[i];
      stack.draw(held, capacity, capacity / 0.75, `${name}: ${namedBytes(WORDS, held) || "nothing"}`); // the line: at 75 %
      made.textContent = `${gib(capacity)}, ${rate(speed)}`;
    });
    paths[0].textContent = `↕ ${rate(table.links[state.link])}`;
    paths[1].textContent = `↕ ${rate(table.disks[state.disk][1])}`;
    const longest = Math.max(...shown.seconds);
    shown.seconds.forEach((seconds, i) => {
      const { name, bar, share, where, track } = roads[i];
      bar.style.width = `${(100 * seconds) / longest}%`;
      share.textContent = took(seconds);
      where.textContent = i ? `${gib(shown.bytes[i])} at ${rate(shown.speeds[i])}` : `${fixed(shown.speeds[0] / 1e12, 0)} TFLOP/s`;
      label(track, `the ${name}: ${took(seconds)}`, "img");
    });
  }

  const note = "Seconds of a step, if nothing is hidden behind anything. The GPU reaches 56 % of its peak, and every block is recomputed. "
    + "Bandwidths at best, one direction's on the link. The processor's update moves 32 bytes a parameter over main memory. "
    + "Passing through the GPU: the block that is computed again, or three blocks as large as the logits; and of weights that are "
    + "away the ends of the model and two blocks.";
  const fields = Object.values(controls).map(({ node }) => node);
  const nodes = [
    make("div", "ex-controls tx-machine", {}, fields.slice(0, 6)), make("div", "ex-controls tx-places", {}, fields.slice(6, 10)),
    make("div", "tx-presets", {}, [...presets, fields[10]]), status, board, keys, costs, make("p", "ex-note", { textContent: note }),
  ];
  return { nodes, redraw };
}

export default explorer("tiers", build);
