// Batch × accumulation × memory. The numbers come in a table from Python; here they are only chosen and drawn.

const SVG = "http://www.w3.org/2000/svg";
const GIB = 2 ** 30;
const CATEGORIES = ["parameters", "gradients", "optimizer", "activations", "temporaries"];
const OPTIMIZERS = { adam: "Adam", momentum: "SGD with momentum", sgd: "SGD" };
const KEYS = ["global_batch", "micro_batch", "optimizer", "gpu"];
const MOST_DRAWN = 16; // pieces of a step; of more, the first ones are drawn

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const inGib = (numbers) => numbers.map((nbytes) => nbytes / GIB);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
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

function make(tag, className, properties = {}, children = []) {
  const node = Object.assign(document.createElement(tag), { className, ...properties });
  // JupyterLab matches its shortcuts ("d d" deletes the cell) from the focused element upwards: stop it right there.
  if (["button", "input", "select"].includes(tag)) node.dataset.lmSuppressShortcuts = "true";
  node.append(...children);
  return node;
}

function makeSlider(name, onInput) {
  const input = make("input", "", { type: "range", min: 0, step: 1 });
  const output = make("b", "");
  input.setAttribute("aria-label", name);
  input.addEventListener("input", () => onInput(2 ** Number(input.value)));
  const set = (value, most) => {
    input.max = Math.log2(most);
    input.value = Math.log2(value);
    output.textContent = value;
    input.setAttribute("aria-valuetext", plural(value, "sequence"));
  };
  return { node: make("label", "ax-field", {}, [make("span", "", { textContent: name }), output, input]), set };
}

function makeSelect(name, options, onInput) {
  const children = Object.entries(options).map(([value, textContent]) => make("option", "", { value, textContent }));
  const select = make("select", "", {}, children);
  select.setAttribute("aria-label", name);
  select.addEventListener("change", () => onInput(select.value));
  const node = make("label", "ax-field", {}, [make("span", "", { textContent: name }), select]);
  return { node, set: (value) => { select.value = value; } };
}

function makeSawtooth() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "ax-film");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const paths = ["activations", "gradients", "optimizer", "parameters", "memory"].map((name) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", `ax-${name}`);
    svg.append(path);
    return path;
  });
  const area = (corners, floor, top) => {
    const end = corners[corners.length - 1][0];
    return `M0 ${top - floor}${corners.map(([x, y]) => `L${x} ${top - y}`).join("")}L${end} ${top - floor}z`;
  };
  const draw = (account, pieces, memory, top, words) => {
    const { states, held, corners } = step(account, pieces);
    svg.setAttribute("viewBox", `0 0 ${pieces} ${top}`);
    svg.setAttribute("aria-label", words);
    const flat = (from, to) => area([[0, to], [pieces, to]], from, top);
    const shapes = [area(corners, 0, top), area(held, states, top), flat(account[0], states), flat(0, account[0]),
      `M0 ${top - memory}H${pieces}`];
    paths.forEach((path, i) => path.setAttribute("d", shapes[i]));
  };
  return { svg, draw };
}

function makeBar(account, micro, pieces, state, top, onClick) {
  const total = sum(account);
  const fits = total <= state.memory;
  const parts = CATEGORIES.map((name, i) => {
    const part = make("i", `ax-part ax-fill-${name}`);
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
  const state = { sending: false };
  const gpus = model.get("gpus");
  const read = () => {
    for (const name of KEYS) state[name] = model.get(name);
  };
  const change = (name, value) => {
    const pressed = el.contains(document.activeElement) && document.activeElement.classList.contains("ax-bar");
    state[name] = value;
    redraw();
    if (pressed) bars.querySelector(".ax-chosen").focus(); // the bar that had the focus was made anew
    state.sending = true; // each set comes back as a change, when the next one is not yet made
    for (const key of [name, "micro_batch"]) model.set(key, state[key]);
    state.sending = false;
    model.save_changes();
  };

  const batch = makeSlider("Sequences in a step", (n) => change("global_batch", n));
  const micro = makeSlider("Sequences in a piece", (n) => change("micro_batch", n));
  const optimizer = makeSelect("Optimizer", OPTIMIZERS, (name) => change("optimizer", name));
  const names = Object.fromEntries(Object.entries(gpus).map(([name, n]) => [name, `${name} (${n / GIB} GiB)`]));
  const gpu = makeSelect("GPU", names, (name) => change("gpu", name));
  const summary = make("div", "ax-summary");
  summary.setAttribute("role", "status");
  const bars = make("div", "ax-bars");
  const line = make("div", "ax-line", {}, [make("span", "")]);
  const film = makeSawtooth();
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
    batch.set(state.global_batch, 512);
    micro.set(state.micro_batch, state.global_batch);
    optimizer.set(state.optimizer);
    gpu.set(state.gpu);
    summary.textContent = tell(state, account, pieces);
    bars.replaceChildren(line, ...rows.map((row, k) =>
      makeBar(row, 2 ** k, state.global_batch / 2 ** k, state, top, (n) => change("micro_batch", n))));
    line.style.setProperty("--ax-level", state.memory / top);
    line.firstChild.textContent = `${state.gpu}: ${state.memory / GIB} GiB`;
    const drawn = Math.min(pieces, MOST_DRAWN);
    film.draw(inGib(account), drawn, state.memory / GIB, top / GIB, `Memory over one step of ${plural(pieces, "piece")}`);
    filmTitle.textContent = drawn < pieces ? `The first ${drawn} of ${pieces} pieces` : `One step, ${plural(pieces, "piece")}`;
    filmEnd.textContent = drawn < pieces ? "and so on →" : "optimizer step →";
  }

  const text = (words) => make("span", "", { textContent: words });
  const keys = CATEGORIES.map((name) => make("span", `ax-key ax-key-${name}`, { textContent: name }));
  el.classList.add("accumulation-explorer");
  el.replaceChildren(make("div", "ax-body", {}, [
    make("div", "ax-controls", {}, [batch.node, micro.node, optimizer.node, gpu.node]),
    summary,
    make("div", "ax-stage", {}, [
      make("div", "ax-pane", {}, [make("b", "", { textContent: "Peak for each size of a piece (GiB)" }), bars,
        make("div", "ax-axis", {}, [text("sequences in a piece")])]),
      make("div", "ax-pane", {}, [filmTitle, make("div", "ax-frame", {}, [film.svg]),
        make("div", "ax-axis ax-ends", {}, [text("time"), filmEnd])]),
    ]),
    make("div", "ax-legend", { ariaHidden: "true" }, keys),
  ]));
  const onModel = () => {
    if (state.sending) return;
    read();
    redraw();
  };
  read();
  redraw();
  for (const name of KEYS) model.on(`change:${name}`, onModel);
  return () => {
    for (const name of KEYS) model.off(`change:${name}`, onModel);
  };
}

export default { render };
