// Three tiers of memory. Bytes, intensities and speeds come from Python; here they are looked up, added and divided.

const STATES = ["weights", "gradients", "optimizer", "checkpoints"];
const WORDS = ["weights", "gradients", "optimizer state", "checkpoints"];
const PRESETS = {
  "All on the GPU": ["GPU", "GPU", "GPU", "GPU"],
  "ZeRO-Offload": ["GPU", "main memory", "main memory", "GPU"],
  "ZeRO-Infinity": ["disk", "disk", "disk", "main memory"],
};

// What is shown: for each tier its bytes by state, their sum and whether they fit; for each state what it costs.
export function look(table, offers, state) {
  const s = offers.sequences.values.indexOf(state.sequences);
  const [gpu, memory, disk] = [table.gpus[state.gpu], table.memories[state.memory], table.disks[state.disk]];
  const sizes = [...table.states[state.model], table.checkpoints[state.model][s]];
  const tiers = table.places.map((place, i) => {
    const held = STATES.map((name, j) => (state[name] === place ? sizes[j] : 0));
    const [capacity, speed] = [gpu, memory, disk][i];
    return { place, held, total: sum(held), capacity, speed, fits: sum(held) <= capacity };
  });
  const travels = STATES.map((name, j) => {
    const [place, intensity, flops] = [state[name], table.intensity[state.model][s][j], gpu[2]];
    const near = name === "optimizer" && state.processor ? memory[1] : table.links[state.link]; // where it is used
    const speed = { GPU: gpu[1], "main memory": near, disk: Math.min(near, disk[1]) }[place];
    const needed = (flops * table.goal) / (1 - table.goal) / intensity;
    const efficiency = place === "GPU" ? null : (intensity * speed) / (intensity * speed + flops);
    return { words: WORDS[j], place, size: sizes[j], intensity, speed, needed, efficiency };
  });
  return { tiers, travels };
}

const rate = (speed) => `${fixed(speed / 1e9, speed < 1e10 ? 1 : 0)} GB/s`;
const inPlace = { GPU: "on the GPU", "main memory": "in main memory", disk: "on disk" };

export function verdict({ tiers, travels }, { model }) {
  const full = tiers.filter(({ fits }) => !fits).map(({ place, total, capacity }) =>
    `${gib(total)} do not fit ${inPlace[place]}, which has ${gib(capacity, 0)}`);
  if (full.length) return `${model}: ${full.join("; ")}.`;
  const away = travels.filter(({ efficiency }) => efficiency !== null);
  if (!away.length) return `${model}: all of it fits on the GPU, and nothing travels.`;
  const { words, efficiency, place } = away.reduce((a, b) => (b.efficiency < a.efficiency ? b : a));
  return `${model}: everything fits. The GPU waits longest for the ${words} ${inPlace[place]}: ` +
    `if for that alone, it computes ${inPercent(efficiency)} of the time.`;
}

function makeTier(table, name) {
  const [stack, made] = [makeStack(table.colors), span("tx-made")];
  const title = make("div", "tx-tier", {}, [make("b", "", { textContent: name }), made]);
  return { name, stack, made, nodes: [title, stack.track, stack.total] };
}

function makeTravel(words, color) {
  const [bar, share, where, speed] = [make("div", "tx-bar"), span("tx-share"), span("tx-where"), span("tx-speed")];
  bar.style.background = color;
  const track = make("div", "tx-gauge", {}, [bar, share]);
  return { bar, share, where, speed, track, nodes: [make("div", "tx-state", {}, [makeKey(words, color), where]), track, speed] };
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
  const travels = WORDS.map((words, i) => makeTravel(words, table.colors[i]));
  const costs = make("div", "tx-board tx-costs", {}, travels.flatMap(({ nodes }) => nodes));

  function redraw() {
    const shown = look(table, offers, state);
    setText(status, verdict(shown, state));
    shown.tiers.forEach(({ held, capacity, speed }, i) => {
      const { name, stack, made } = tiers[i];
      stack.draw(held, capacity, capacity / 0.75, `${name}: ${namedBytes(WORDS, held) || "nothing"}`); // the line: at 75 %
      made.textContent = `${gib(capacity, 0)}, ${rate(speed)}`;
    });
    paths[0].textContent = `↕ ${rate(table.links[state.link])}`;
    paths[1].textContent = `↕ ${rate(table.disks[state.disk][1])}`;
    shown.travels.forEach(({ words, place, size, speed, needed, efficiency }, i) => {
      const row = travels[i];
      const away = efficiency !== null;
      row.where.textContent = `${gib(size)} ${inPlace[place]}`;
      row.bar.style.width = `${100 * (efficiency ?? 0)}%`;
      row.share.textContent = away ? inPercent(efficiency) : "stays";
      row.speed.textContent = `${away ? `${rate(speed)}; ` : ""}${inPercent(table.goal)} takes ${rate(needed)}`;
      label(row.track, `${words}: ${away ? `the GPU computes ${inPercent(efficiency)} of the time` : "stay on the GPU"}`, "img");
    });
  }

  const note = "A percentage is the share of its time in which the GPU computes, at 56 % of its peak, if it waits for this state "
    + "alone and nothing is hidden behind computation. Weights and gradients count together, 8 bytes a parameter. "
    + "Bandwidths at best. The block at work comes on top, and so does what a processor that runs Adam gets and returns.";
  const fields = Object.values(controls).map(({ node }) => node);
  const nodes = [
    make("div", "ex-controls tx-machine", {}, fields.slice(0, 6)), make("div", "ex-controls tx-places", {}, fields.slice(6, 10)),
    make("div", "tx-presets", {}, [...presets, fields[10]]), status, board, costs, make("p", "ex-note", { textContent: note }),
  ];
  return { nodes, redraw };
}

export default explorer("tiers", build);
