// The ring explorer's face. Who holds what after each step, and what arrived in it, comes from Python.

const HINT = "A coloured slot is a rank's summand. ↓ goes to the next rank in the next step (from the last one to rank 0), " +
  "+ was added just now, = was copied. Click a cell to follow its part.";

const LIST = new Intl.ListFormat("en-GB"); // without a comma before "and"

function inWords(p, step) {
  if (step === 0) return "Start. Every rank has its own tensor, cut into parts. Nobody has sent anything.";
  const pass = step < p ? "first pass, what arrives is added up" : "second pass, what arrives is finished and is kept";
  const end = { [p - 1]: " Every rank now owns one finished part.", [2 * p - 2]: " Everybody has everything." }[step] ?? "";
  return `Step ${step} of ${2 * p - 2}: ${pass}.${end}`;
}

function hued(node, colors, rank) {
  node.style.setProperty("--rx-hue", colors[rank % colors.length]);
  return node;
}

// One part on one rank: a slot for each rank's summand, filled where it is in.
function makeCell(rank, part, p, colors, onFollow) {
  const slots = Array.from({ length: p }, (_, summand) => hued(span("rx-slot"), colors, summand));
  const [before, count, after] = ["rx-mark", "rx-number", "rx-mark"].map((name) => span(name));
  const node = makeButton("", "", () => onFollow(part), "rx-cell");
  node.append(make("span", "rx-strip", {}, slots), make("span", "rx-count", {}, [before, count, after]));
  Object.assign(node.dataset, { rank, part });
  // held: whose summands are in. arrived: [from, to, part, whether added]. leaving: the same, of the next step.
  function update(held, arrived, leaving, followed) {
    const done = held.length === p;
    slots.forEach((slot, summand) => slot.classList.toggle("rx-in", held.includes(summand)));
    node.classList.toggle("rx-done", done);
    node.classList.toggle("rx-arrived", Boolean(arrived));
    node.classList.toggle("rx-faded", followed !== null && followed !== part);
    node.setAttribute("aria-pressed", String(followed === part));
    setText(before, arrived ? (arrived[3] ? "+" : "=") : "");
    setText(count, done ? "all" : `${held.length}/${p}`);
    setText(after, leaving ? "↓" : "");
    const content = done ? "the finished sum" : `summand${held.length > 1 ? "s" : ""} of ${LIST.format(held.map(String))}`;
    const came = arrived ? `, ${arrived[3] ? "added" : "copied"} just now from rank ${arrived[0]}` : "";
    label(node, `rank ${rank}, part ${part}: ${content}${came}${leaving ? `, goes to rank ${leaving[1]} next` : ""}`);
  }
  return { node, update };
}

// Rows are ranks, columns are parts.
function makeGrid(p, { rings, colors }, onFollow) {
  const everyone = Array.from({ length: p }, (_, i) => i);
  const cells = everyone.map((rank) => everyone.map((part) => makeCell(rank, part, p, colors, onFollow)));
  const rows = cells.map((row, rank) => {
    const name = hued(span("rx-rank", `rank ${rank}`), colors, rank);
    return label(make("div", "rx-row", {}, [name, ...row.map((cell) => cell.node)]), `rank ${rank}`, "group");
  });
  const head = make("div", "rx-row rx-head", { ariaHidden: "true" }, // every cell says its own name
    [span(), ...everyone.map((part) => span("rx-column", `part ${part}`))]);
  const node = make("div", "rx-grid", {}, [head, ...rows]);
  node.style.setProperty("--rx-p", p);
  walk(node, cells.map((row) => row.map((cell) => cell.node)), true);

  function update(step, followed) {
    const { frames } = rings[p];
    const [{ holding, arrived }, next] = [frames[step], frames[step + 1]?.arrived ?? []];
    cells.forEach((row, rank) => row.forEach((cell, part) => cell.update(holding[rank][part],
      arrived.find(([, to, which]) => to === rank && which === part),
      next.find(([from, , which]) => from === rank && which === part), followed)));
  }
  return { node, update };
}

// How much each rank has sent, beside what it would have sent as one of everyone to everyone.
function makeMeter({ rings }) {
  const [bar, words] = [span("rx-bar"), span("rx-sent")];
  const node = make("div", "rx-meter", {}, [make("span", "rx-track", { ariaHidden: "true" }, [bar]), words]);
  const timesN = (amount) => `${Number(amount.toFixed(3))} n`;
  function update(p, step) {
    const { sent, direct } = rings[p];
    bar.style.width = `${(100 * sent[step]) / direct}%`;
    setText(words, `each rank has sent ${plural(step, "message")}, ${timesN(sent[step])}; at the end ` +
      `${timesN(sent.at(-1))}. Everyone to everyone: ${direct} n, the whole bar.`);
  }
  return { node, update };
}

function build({ table, state, change, controls }) {
  let [grid, followed, drawn] = [null, null, 0];
  const first = makeButton("start", "back to the start", () => change({ step: 0 }));
  const back = makeButton("◀ back", "one step back", () => change({ step: state.step - 1 }));
  const forward = makeButton("step ▶", "one step forward", () => change({ step: state.step + 1 }));
  const [meter, place, status] = [makeMeter(table), make("div", "rx-place"), makeStatus("rx-status")];
  controls.step.input.classList.add("rx-slider");
  controls.world_size.input.addEventListener("change", () => change({ step: 0 }));

  function follow(part) {
    followed = followed === part ? null : part;
    grid.update(state.step, followed);
  }
  function redraw() {
    const { world_size: p, step } = state;
    const last = table.rings[p].frames.length - 1;
    if (drawn !== p) {
      [drawn, followed, grid] = [p, null, makeGrid(p, table, follow)];
      place.replaceChildren(grid.node);
    }
    grid.update(step, followed);
    meter.update(p, step);
    first.disabled = back.disabled = step === 0;
    forward.disabled = step === last;
    controls.step.input.setAttribute("aria-valuetext", `step ${step} of ${last}`);
    setText(status, inWords(p, step));
  }
  const nodes = [
    make("div", "rx-controls", {}, [first, back, forward, controls.step.input, controls.world_size.node, status]),
    place, meter.node, make("p", "ex-note", { textContent: HINT }),
  ];
  return { nodes, redraw };
}

export default explorer("ring", build);
