// The ring explorer's face, and its schedule: the same as `schedules.all_reduce_ring` of course_lib.ranks.

const MIN_RANKS = 2, MAX_RANKS = 8;
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const mod = (a, p) => ((a % p) + p) % p;

// The part that `rank` passes on in step `step` (from 1), and whether its receiver adds it up.
export function sends(p, rank, step) {
  return { to: mod(rank + 1, p), part: mod(rank - step, p), add: step < p };
}

// What every rank holds after `steps` steps: holding[rank][part] = numbers of the ranks whose summands are in it.
export function holdingAfter(p, steps) {
  let holding = Array.from({ length: p }, (_, rank) => Array.from({ length: p }, () => [rank]));
  for (let step = 1; step <= steps; step += 1) {
    const next = holding.map((parts) => [...parts]);
    for (let rank = 0; rank < p; rank += 1) {
      const { to, part, add } = sends(p, rank, step);
      const arrived = holding[rank][part];
      next[to][part] = add ? [...holding[to][part], ...arrived].sort((a, b) => a - b) : arrived;
    }
    holding = next;
  }
  return holding;
}

// A multiple of n, the size of the tensor, with as many digits as it needs.
function timesN(parts, p) {
  return `${Number((parts / p).toFixed(3))} n`;
}

function list(numbers) {
  return numbers.length < 2 ? String(numbers) : `${numbers.slice(0, -1).join(", ")} and ${numbers.at(-1)}`;
}

function inWords(p, step) {
  if (step === 0) return "Start. Every rank has its own tensor, cut into parts. Nobody has sent anything.";
  const pass = step < p ? "first pass, what arrives is added up" : "second pass, what arrives is finished and is kept";
  const end = { [p - 1]: " Every rank now owns one finished part.", [2 * p - 2]: " Everybody has everything." }[step] ?? "";
  return `Step ${step} of ${2 * p - 2}: ${pass}.${end}`;
}

// One part on one rank: a slot for each rank's summand, filled where it is in.
function makeCell(rank, part, p, colors) {
  const slots = Array.from({ length: p }, (_, summand) => {
    const slot = make("span", "rx-slot");
    slot.style.setProperty("--rx-hue", colors[summand % colors.length]);
    return slot;
  });
  const [before, count, after] = ["rx-mark", "rx-number", "rx-mark"].map((name) => make("span", name));
  const strip = make("span", "rx-strip", {}, slots);
  const node = make("button", "rx-cell", { type: "button", tabIndex: rank || part ? -1 : 0 }, [strip, make("span", "rx-count", {}, [before, count, after])]);
  Object.assign(node.dataset, { rank, part });
  function update(held, arrived, leaving) {
    slots.forEach((slot, summand) => slot.classList.toggle("rx-in", held.includes(summand)));
    node.classList.toggle("rx-done", held.length === p);
    node.classList.toggle("rx-arrived", Boolean(arrived));
    setText(before, arrived ? (arrived.add ? "+" : "=") : "");
    setText(count, held.length === p ? "all" : `${held.length}/${p}`);
    setText(after, leaving ? "↓" : "");
    const content = held.length === p ? "the finished sum" : `summand${held.length > 1 ? "s" : ""} of ${list(held)}`;
    const came = arrived ? `, ${arrived.add ? "added" : "copied"} just now from rank ${arrived.from}` : "";
    const goes = leaving ? `, goes to rank ${leaving.to} next` : "";
    node.setAttribute("aria-label", `rank ${rank}, part ${part}: ${content}${came}${goes}`);
  }
  return { node, update };
}

// Rows are ranks, columns are parts. Arrows walk from cell to cell (one stop for Tab).
function makeGrid(p, colors, onFollow) {
  const cells = Array.from({ length: p }, (_, rank) => Array.from({ length: p }, (_, part) => makeCell(rank, part, p, colors)));
  const head = Array.from({ length: p }, (_, part) => make("span", "rx-column", { textContent: `part ${part}` }));
  const rows = cells.map((row, rank) => {
    const name = make("span", "rx-rank", { textContent: `rank ${rank}` });
    name.style.setProperty("--rx-hue", colors[rank % colors.length]);
    const node = make("div", "rx-row", {}, [name, ...row.map((cell) => cell.node)]);
    node.setAttribute("role", "group");
    node.setAttribute("aria-label", `rank ${rank}`);
    return node;
  });
  const top = make("div", "rx-row rx-head", {}, [make("span", ""), ...head]);
  top.setAttribute("aria-hidden", "true"); // every cell says its own name
  const node = make("div", "rx-grid", {}, [top, ...rows]);
  node.style.setProperty("--rx-p", p);
  node.addEventListener("keydown", (event) => {
    const at = event.target.closest(".rx-cell");
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
    if (!at || down === undefined) return;
    event.preventDefault();
    const [rank, part] = [mod(Number(at.dataset.rank) + down, p), mod(Number(at.dataset.part) + right, p)];
    cells.flat().forEach((cell) => (cell.node.tabIndex = -1));
    cells[rank][part].node.tabIndex = 0;
    cells[rank][part].node.focus();
  });
  cells.flat().forEach((cell) => cell.node.addEventListener("click", () => onFollow(Number(cell.node.dataset.part))));

  function update(step, followed) {
    const holding = holdingAfter(p, step);
    const [arrivals, departures] = [new Map(), new Map()];
    for (let rank = 0; rank < p; rank += 1) {
      const [last, next] = [sends(p, rank, step), sends(p, rank, step + 1)];
      if (step > 0) arrivals.set(`${last.to},${last.part}`, { from: rank, add: last.add });
      if (step < 2 * p - 2) departures.set(`${rank},${next.part}`, next);
    }
    cells.forEach((row, rank) => row.forEach((cell, part) => {
      cell.update(holding[rank][part], arrivals.get(`${rank},${part}`), departures.get(`${rank},${part}`));
      cell.node.classList.toggle("rx-faded", followed !== null && followed !== part);
      cell.node.setAttribute("aria-pressed", String(followed === part));
    }));
  }
  return { node, update };
}

function makeControls(onStep, onRanks) {
  const button = (text, label, to) => {
    const node = make("button", "ex-button", { type: "button", textContent: text });
    node.setAttribute("aria-label", label);
    node.addEventListener("click", () => onStep(to));
    return node;
  };
  const first = button("start", "back to the start", () => 0);
  const back = button("◀ back", "one step back", (step) => step - 1);
  const forward = button("step ▶", "one step forward", (step) => step + 1);
  const slider = make("input", "rx-slider", { type: "range", min: 0, step: 1 });
  slider.setAttribute("aria-label", "steps taken");
  slider.addEventListener("input", () => onStep(() => Number(slider.value)));
  const ranks = make("select", "");
  for (let p = MIN_RANKS; p <= MAX_RANKS; p += 1) ranks.append(make("option", "", { value: p, textContent: p }));
  ranks.addEventListener("change", () => onRanks(Number(ranks.value)));
  const chooser = make("label", "rx-chooser", {}, [make("span", "", { textContent: "ranks" }), ranks]);
  const status = makeStatus("rx-status");
  const node = make("div", "rx-controls", {}, [first, back, forward, slider, chooser, status]);
  function update(p, step, words) {
    const last = 2 * p - 2;
    first.disabled = back.disabled = step === 0;
    forward.disabled = step === last;
    slider.max = last;
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step} of ${last}`);
    ranks.value = p;
    setText(status, words);
  }
  return { node, update };
}

// How much each rank has sent, beside what it would have sent as one of everyone to everyone.
function makeMeter() {
  const bar = make("span", "rx-bar");
  const words = make("span", "rx-sent");
  const node = make("div", "rx-meter", {}, [make("span", "rx-track", {}, [bar]), words]);
  node.firstChild.setAttribute("aria-hidden", "true");
  function update(p, step) {
    bar.style.width = `${(100 * step) / (p * (p - 1))}%`;
    setText(words, `each rank has sent ${plural(step, "message")}, ${timesN(step, p)}; at the end ` +
      `${timesN(2 * p - 2, p)}. Everyone to everyone: ${p - 1} n, the whole bar.`);
  }
  return { node, update };
}

function render({ model, el }) {
  const { state, change, begin } = follow(model, ["world_size", "step"], redraw);
  const colors = model.get("_colors");
  let followed = null;
  let grid = null;
  let drawn = 0;
  const controls = makeControls((to) => change({ step: to(state.step) }), (p) => change({ step: 0, world_size: p }));
  const meter = makeMeter();
  const place = make("div", "rx-place");
  const hint = make("p", "ex-note", {
    textContent: "A coloured slot is a rank's summand. ↓ goes to the next rank in the next step (from the last one to " +
      "rank 0), + was added just now, = was copied. Click a cell to follow its part.",
  });
  function redraw() {
    const p = state.world_size = clamp(state.world_size, MIN_RANKS, MAX_RANKS);
    const step = state.step = clamp(state.step, 0, 2 * p - 2);
    if (drawn !== p) {
      followed = null;
      drawn = p;
      grid = makeGrid(p, colors, (part) => {
        followed = followed === part ? null : part;
        redraw();
      });
      place.replaceChildren(grid.node);
    }
    grid.update(step, followed);
    meter.update(p, step);
    controls.update(p, step, inWords(p, step));
  }
  fill(el, "ring-explorer", [controls.node, place, meter.node, hint]);
  return begin();
}

export default { render };
