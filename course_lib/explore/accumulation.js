// Batch × accumulation × memory. The numbers come in a table from Python; here they are only chosen and drawn.

const GIB = 2 ** 30;
const CATEGORIES = ["parameters", "gradients", "optimizer", "activations", "temporaries"];
const OPTIMIZERS = [["adam", "Adam"], ["momentum", "SGD with momentum"], ["sgd", "SGD"]];
const NAMES = ["global_batch", "micro_batch", "optimizer", "gpu"];
const MOST_DRAWN = 16; // pieces of a step; of more, the first ones are drawn

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const inGib = (numbers) => numbers.map((nbytes) => nbytes / GIB);
const gib = (nbytes) => (nbytes / GIB).toFixed(nbytes < 100 * GIB ? 1 : 0);

// What is alive over one step, as corners [time, in the account's unit]; a piece takes one unit of time, a third of it forward.
export function step(account, pieces) {
  const [parameters, , optimizer, , temporaries] = account;
  const states = parameters + optimizer;
  const hill = account[3] + temporaries;
  const held = [[0, states]];
  const corners = [[0, states]];
  for (let i = 0; i < pieces; i++) {
    const before = i ? parameters : 0; // gradients are as large as the parameters
    corners.push([i + 1 / 3, states + before + hill], [i + 1, states + parameters]);
    if (!i) held.push([1 / 3, states], [1, states + parameters]);
  }
  held.push([pieces, states + parameters]);
  return { states, held, corners };
}

// A slider over powers of two, given and set by their exponents.
function makeDoubling(name, onInput) {
  return makeSlider(name, [0, 9], (exponent) => String(2 ** exponent), (exponent) => onInput(2 ** exponent));
}

// The memory of a step, in a box of `pieces` × top: what lives longest lies lowest.
function stepShapes(account, pieces, memory, top) {
  const { states, held, corners } = step(account, pieces);
  const area = (line, floor) => {
    const end = line[line.length - 1][0];
    return `M0 ${top - floor}${line.map(([x, y]) => `L${x} ${top - y}`).join("")}L${end} ${top - floor}z`;
  };
  const flat = (from, to) => area([[0, to], [pieces, to]], from);
  return { activations: area(corners, 0), gradients: area(held, states), optimizer: flat(account[0], states),
    parameters: flat(0, account[0]), memory: `M0 ${top - memory}H${pieces}` };
}

function makeBar(account, micro, pieces, state, top, onClick) {
  const total = sum(account);
  const fits = total <= state.memory;
  const parts = CATEGORIES.map((name, i) => {
    const part = make("i", `ax-part ax-${name}`);
    part.style.height = `${(100 * account[i]) / top}%`;
    return part;
  }).reverse();
  const label = make("span", "ax-total", { textContent: gib(total) });
  const cut = total > top; // its number then stands in the free row above, where the bar would go on
  const over = make("span", "ax-above", {}, cut ? [label] : []);
  const column = make("span", `ax-column${cut ? " ax-cut" : ""}`, {}, cut ? parts : [label, ...parts]);
  const size = make("span", "ax-size", { textContent: micro });
  const chosen = micro === state.micro_batch;
  const bar = make("button", `ax-bar${chosen ? " ax-chosen" : ""}${fits ? "" : " ax-over"}`, { type: "button" }, [over, column, size]);
  bar.setAttribute("aria-pressed", String(chosen));
  bar.setAttribute("aria-label", `${plural(pieces, "piece")} of ${micro}: ${gib(total)} GiB, ${fits ? "fits" : "too much"}`);
  bar.addEventListener("click", () => onClick(micro));
  return bar;
}

function tell(state, account, pieces) {
  const total = sum(account);
  const verdict = total <= state.memory
    ? `It fits the ${state.gpu}, with ${gib(state.memory - total)} GiB to spare.`
    : `The ${state.gpu} has ${gib(state.memory)} GiB: ${gib(total - state.memory)} too few.`;
  const cut = pieces === 1 ? "in one piece" : `as ${pieces} pieces of ${state.micro_batch}`;
  return `${plural(state.global_batch, "sequence")} ${cut}: ${gib(total)} GiB at the peak, ${gib(account[3])} of them activations. ${verdict}`;
}

function render({ model, el }) {
  const { state, change, begin } = follow(model, NAMES, redraw);
  const gpus = model.get("gpus");
  const memories = Object.entries(gpus).map(([name, n]) => [name, `${name} (${n / GIB} GiB)`]);
  const choose = (size) => {
    const pressed = bars.contains(document.activeElement);
    change({ micro_batch: size });
    if (pressed) bars.querySelector(".ax-chosen").focus(); // the bar that had the focus was made anew
  };

  const batch = makeDoubling("Sequences in a step", (n) => change({ global_batch: n }));
  const micro = makeDoubling("Sequences in a piece", (n) => change({ micro_batch: n }));
  const optimizer = makeSelect("Optimizer", OPTIMIZERS, (name) => change({ optimizer: name }));
  const gpu = makeSelect("GPU", memories, (name) => change({ gpu: name }));
  const status = makeStatus();
  const bars = make("div", "ax-bars");
  const line = make("div", "ax-line", {}, [make("span", "")]);
  const film = makeChart("ax", "film", ["activations", "gradients", "optimizer", "parameters"], ["memory"]);
  const filmTitle = make("b", "");
  const filmEnd = make("span", "");

  function redraw() {
    state.micro_batch = Math.min(state.micro_batch, state.global_batch);
    state.memory = gpus[state.gpu];
    const rows = model.get("table")[state.optimizer][String(state.global_batch)];
    const account = rows[Math.log2(state.micro_batch)];
    const pieces = state.global_batch / state.micro_batch;
    const largest = Math.max(state.memory, ...rows.map(sum));
    const top = Math.min(1.12 * largest, 2 * Math.max(state.memory, Math.min(sum(account), 4 * state.memory)));
    batch.set(Math.log2(state.global_batch));
    micro.set(Math.log2(state.micro_batch), Math.log2(state.global_batch));
    optimizer.set(state.optimizer);
    gpu.set(state.gpu);
    setText(status, tell(state, account, pieces));
    bars.replaceChildren(line, ...rows.map((row, k) =>
      makeBar(row, 2 ** k, state.global_batch / 2 ** k, state, top, choose)));
    line.style.setProperty("--ax-level", state.memory / top);
    line.firstChild.textContent = `${state.gpu}: ${state.memory / GIB} GiB`;
    const drawn = Math.min(pieces, MOST_DRAWN);
    film.draw(drawn, top / GIB, stepShapes(inGib(account), drawn, state.memory / GIB, top / GIB),
      `Memory over one step of ${plural(pieces, "piece")}`);
    filmTitle.textContent = drawn < pieces ? `The first ${drawn} of ${pieces} pieces` : `One step, ${plural(pieces, "piece")}`;
    filmEnd.textContent = drawn < pieces ? "and so on →" : "optimizer step →";
  }

  fill(el, "accumulation-explorer", [
    make("div", "ex-controls ax-controls", {}, [batch.node, micro.node, optimizer.node, gpu.node]), status,
    make("div", "ax-stage", {}, [
      make("div", "ax-pane", {}, [make("b", "", { textContent: "Peak for each size of a piece (GiB)" }), bars,
        makeAxis("ax-below", "sequences in a piece")]),
      make("div", "ax-pane", {}, [filmTitle, make("div", "ax-frame", {}, [film.svg]), makeAxis("ax-ends", "time", filmEnd)]),
    ]),
    makeLegend("ax", Object.fromEntries(CATEGORIES.map((name) => [name, name]))),
  ]);
  return begin();
}

export default { render };
