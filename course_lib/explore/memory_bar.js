// Memory against cards. `held` mirrors `explore.memory_bar.held`: bytes by category at the turn of a step.

const VOCAB = 50257;
const WEIGHT = { fp32: 4, mixed: 2, bf16: 2 };
const MOMENTS = { sgd: 0, momentum: 1, adam: 2 };
const WORDS = {
  layers: "Layers", width: "Width", batch: "Batch (sequences)", seq: "Sequence (tokens)",
  precision: "Precision", optimizer: "Optimizer", attention: "Attention", recompute: "Recompute",
  fp32: "fp32", mixed: "mixed (fp32 copy)", bf16: "all bf16", sgd: "SGD", momentum: "SGD, momentum", adam: "Adam",
  explicit: "written out", fused: "fused", none: "nothing", full: "every block",
};
const SLIDERS = ["layers", "width", "batch", "seq"];
const SELECTS = ["precision", "optimizer", "attention", "recompute"];
const NAMES = [...SLIDERS, ...SELECTS];
const PRESETS = {
  "GPT-2 small": { layers: 12, width: 768, batch: 8, seq: 1024 },
  "GPT-2 XL": { layers: 48, width: 1600, batch: 32, seq: 1024 },
  "GPT-3 175B": { layers: 96, width: 12288, batch: 1, seq: 2048 },
};

export function parameters({ layers, width, seq }) {
  return layers * (12 * width * width + 13 * width) + (VOCAB + seq) * width + 2 * width;
}

export function held(run) {
  const { layers, width, batch, seq, precision, optimizer, attention, recompute } = run;
  const count = parameters(run);
  const element = WEIGHT[precision];
  const moment = precision === "bf16" ? 2 : 4;
  const counters = optimizer === "adam" && precision !== "mixed" ? 4 * (12 * layers + 4) : 0;
  const heads = width / (width < 2048 ? 64 : 128);
  const tokens = batch * seq;
  const stream = element * tokens * width;
  const pieces = attention === "fused" ? 8 : batch === 1 || heads === 1 ? 9 : 8;
  const scores = attention === "fused" ? 4 * tokens * heads : element * tokens * heads * seq + seq * seq;
  const block = recompute === "full" ? stream : (pieces + 8) * stream + 4 * element * tokens + scores;
  const ends = 2 * stream + 2 * element * tokens + 4 * tokens * VOCAB + 16 * tokens + 8 * seq + 4;
  return {
    parameters: element * count,
    gradients: element * count,
    optimizer: (precision === "mixed" ? 4 * count : 0) + moment * MOMENTS[optimizer] * count + counters,
    activations: layers * block + ends,
    temporaries: 0,
  };
}

export function inWords(nbytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = nbytes;
  let i = 0;
  for (; value >= 1024 && i < units.length - 1; i++) value /= 1024;
  return `${value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 })} ${units[i]}`;
}

function summarize(run, account, total, gpus) {
  const count = parameters(run);
  const size = count >= 1e9 ? `${(count / 1e9).toPrecision(3)} billion` : `${Math.round(count / 1e6)} million`;
  const fits = gpus.filter(([, memory]) => total <= memory);
  const share = Math.round((100 * account.activations) / total);
  const verdict = fits.length ? `The smallest card that holds it is the ${fits[0][0]}.` : "No single card holds it.";
  return `${size} parameters: ${inWords(total)} to hold, of which ${share} % are activations. ${verdict}`;
}

// A slider over a list of numbers.
function makeScale(name, values, onInput) {
  const inFull = (i) => values[i].toLocaleString("en-US");
  const { node, set } = makeSlider(name, [0, values.length - 1], inFull, (i) => onInput(values[i]));
  return { node, set: (value) => set(values.indexOf(value)) };
}

function render({ model, el }) {
  const [choices, gpus, colors] = ["choices", "gpus", "colors"].map((name) => model.get(name));
  const { state: run, change, begin } = follow(model, NAMES, redraw);
  const controls = Object.fromEntries(NAMES.map((name) => {
    const set = (value) => change({ [name]: value });
    if (SLIDERS.includes(name)) return [name, makeScale(WORDS[name], choices[name], set)];
    return [name, makeSelect(WORDS[name], choices[name].map((value) => [value, WORDS[value]]), set)];
  }));
  const presets = Object.entries(PRESETS).map(([name, preset]) =>
    make("button", "ex-button", { type: "button", textContent: name, onclick: () => change(preset) }));
  const status = makeStatus();
  const stack = make("div", "mx-stack");
  stack.setAttribute("role", "img");
  const parts = Object.keys(colors).map((name) => {
    const bar = make("div", "mx-part");
    bar.style.background = colors[name];
    return { name, bar, key: make("span", "ex-key") };
  });
  stack.append(...parts.map(({ bar }) => bar));
  for (const { name, key } of parts) key.style.setProperty("--ex-color", colors[name]);
  const cards = gpus.map(([name, memory]) => {
    const [bar, verdict] = [make("div", "mx-card"), make("span", "mx-verdict")];
    const row = [make("span", "mx-name", { textContent: name }), make("div", "mx-track", {}, [bar]), verdict];
    return { memory, bar, verdict, row };
  });

  function redraw() {
    const account = held(run);
    const total = Object.values(account).reduce((sum, nbytes) => sum + nbytes, 0);
    const enough = gpus.map(([, memory]) => memory).filter((memory) => memory >= total);
    const top = 1.02 * (enough.length ? Math.min(...enough) : total);
    for (const name of NAMES) controls[name].set(run[name]);
    setText(status, summarize(run, account, total, gpus));
    for (const { name, bar, key } of parts) {
      bar.style.width = `${(100 * account[name]) / top}%`;
      key.textContent = `${name} ${inWords(account[name])}`;
      key.hidden = !account[name];
    }
    stack.setAttribute("aria-label", parts.filter(({ key }) => !key.hidden).map(({ key }) => key.textContent).join(", "));
    board.style.setProperty("--mx-total", `${(100 * total) / top}%`);
    for (const { memory, bar, verdict } of cards) {
      const fits = total <= memory;
      bar.style.width = `${Math.min(100, (100 * memory) / top)}%`;
      bar.className = `mx-card${fits ? " mx-fits" : ""}${memory > top ? " mx-longer" : ""}`;
      verdict.textContent = fits ? `fits, ${Math.round((100 * total) / memory)} % full` :
        `at least ${Math.ceil(total / memory).toLocaleString("en-US")} of them`;
    }
  }

  const rows = [make("span", "mx-name", { textContent: "to hold" }), make("div", "mx-track", {}, [stack]), make("span", "")];
  const board = make("div", "mx-board", {}, [...rows, ...cards.flatMap(({ row }) => row)]);
  fill(el, "memory-bar-explorer", [
    make("div", "ex-controls mx-controls", {}, NAMES.map((name) => controls[name].node)),
    make("div", "mx-presets", {}, presets), status, board, make("div", "ex-legend", {}, parts.map(({ key }) => key)),
  ]);
  return begin();
}

export default { render };
