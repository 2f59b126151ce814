// Memory against cards. What the bytes are made of comes from Python; here the parts are looked up and added.

const PRESETS = {
  "GPT-2 small": { layers: 12, width: 768, batch: 8, seq: 1024 },
  "GPT-2 XL": { layers: 48, width: 1600, batch: 32, seq: 1024 },
  "GPT-3 175B": { layers: 96, width: 12288, batch: 1, seq: 2048 },
};

// The number of parameters, and bytes by category.
export function add(table, offers, state) {
  const { layers, batch, seq, precision, optimizer, attention, recompute } = state;
  const [w, s] = ["width", "seq"].map((name) => offers[name].values.indexOf(state[name]));
  const [count, parameters, gradients, moments] = table.states[`${precision} ${optimizer}`][w]
    .map(([once, layer, token]) => once + layers * layer + seq * token);
  const [one, two, more] = table.activations[table.kinds[`${precision} ${attention} ${recompute}`]][w][s]
    .map(([once, layer]) => once + layers * layer);
  const activations = batch === 1 ? one : two + (batch - 2) * more;
  return { count, account: { parameters, gradients, optimizer: moments, activations, temporaries: 0 } };
}

export function inWords(nbytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let [value, i] = [nbytes, 0];
  for (; value >= 1024 && i < units.length - 1; i++) value /= 1024;
  return `${value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 })} ${units[i]}`;
}

function summarize(count, account, total, gpus) {
  const size = count >= 1e9 ? `${(count / 1e9).toPrecision(3)} billion` : `${Math.round(count / 1e6)} million`;
  const fits = gpus.filter(([, memory]) => total <= memory);
  const share = Math.round((100 * account.activations) / total);
  const verdict = fits.length ? `The smallest card that holds it is the ${fits[0][0]}.` : "No single card holds it.";
  return `${size} parameters: ${inWords(total)} to hold, of which ${share} % are activations. ${verdict}`;
}

function build({ table, state, change, controls, offers }) {
  const { gpus, colors } = table;
  const presets = Object.entries(PRESETS).map(([name, preset]) => makeButton(name, "", () => change(preset)));
  const status = makeStatus();
  const parts = Object.entries(colors).map(([name, color]) => {
    const [bar, key] = [make("div", "mx-part"), span("ex-key")];
    bar.style.background = color;
    key.style.setProperty("--ex-color", color);
    return { name, bar, key };
  });
  const stack = make("div", "mx-stack", {}, parts.map(({ bar }) => bar));
  const cards = gpus.map(([name, memory]) => {
    const [bar, verdict] = [make("div", "mx-card"), span("mx-verdict")];
    return { memory, bar, verdict, row: [span("mx-name", name), make("div", "mx-track", {}, [bar]), verdict] };
  });
  const rows = [span("mx-name", "to hold"), make("div", "mx-track", {}, [stack]), span()];
  const board = make("div", "mx-board", {}, [...rows, ...cards.flatMap(({ row }) => row)]);

  function redraw() {
    const { count, account } = add(table, offers, state);
    const total = sum(Object.values(account));
    const enough = gpus.map(([, memory]) => memory).filter((memory) => memory >= total);
    const top = 1.02 * (enough.length ? Math.min(...enough) : total);
    setText(status, summarize(count, account, total, gpus));
    for (const { name, bar, key } of parts) {
      bar.style.width = `${(100 * account[name]) / top}%`;
      key.textContent = `${name} ${inWords(account[name])}`;
      key.hidden = !account[name];
    }
    label(stack, parts.filter(({ key }) => !key.hidden).map(({ key }) => key.textContent).join(", "), "img");
    board.style.setProperty("--mx-total", `${(100 * total) / top}%`);
    for (const { memory, bar, verdict } of cards) {
      const fits = total <= memory;
      bar.style.width = `${Math.min(100, (100 * memory) / top)}%`;
      bar.className = `mx-card${fits ? " mx-fits" : ""}${memory > top ? " mx-longer" : ""}`;
      verdict.textContent = fits ? `fits, ${Math.round((100 * total) / memory)} % full` :
        `at least ${inFull(Math.ceil(total / memory))} of them`;
    }
  }

  const nodes = [
    make("div", "ex-controls mx-controls", {}, Object.values(controls).map(({ node }) => node)),
    make("div", "mx-presets", {}, presets), status, board, make("div", "ex-legend", {}, parts.map(({ key }) => key)),
  ];
  return { nodes, redraw };
}

export default explorer("memory-bar", build);
