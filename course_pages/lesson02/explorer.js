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
  const verdict = fits.length ? `The smallest card with room for it is the ${fits[0][0]}; the way back asks for more.` :
    "No single card holds it.";
  return `${size} parameters: ${inWords(total)} to hold, of which ${inPercent(account.activations / total)} are activations. ${verdict}`;
}

function build({ table, state, change, controls, offers }) {
  const { gpus, colors } = table;
  const presets = Object.entries(PRESETS).map(([name, preset]) => makeButton(name, "", () => change(preset)));
  const status = makeStatus();
  const stack = makeStack(Object.values(colors));
  const keys = Object.values(colors).map((color) => makeKey("", color));
  const cards = gpus.map(([name, memory]) => {
    const [bar, verdict] = [make("div", "mx-card"), span("mx-verdict")];
    return { memory, bar, verdict, row: [span("mx-name", name), make("div", "ex-track", {}, [bar]), verdict] };
  });
  const rows = [span("mx-name", "to hold"), stack.track, span()];
  const board = make("div", "mx-board", {}, [...rows, ...cards.flatMap(({ row }) => row)]);

  function redraw() {
    const { count, account } = add(table, offers, state);
    const total = sum(Object.values(account));
    const enough = gpus.map(([, memory]) => memory).filter((memory) => memory >= total);
    // The smallest card that is large enough fills the track; where none is, the bar itself does.
    const top = 1.02 * (enough.length ? Math.min(...enough) : total);
    setText(status, summarize(count, account, total, gpus));
    Object.entries(account).forEach(([name, nbytes], i) => {
      keys[i].textContent = `${name} ${inWords(nbytes)}`;
      keys[i].hidden = !nbytes;
    });
    const told = keys.filter((key) => !key.hidden).map((key) => key.textContent);
    stack.draw(Object.values(account), top, top, told.join(", "));
    board.style.setProperty("--ex-limit", `${(100 * total) / top}%`);
    for (const { memory, bar, verdict } of cards) {
      const fits = total <= memory;
      bar.style.width = `${Math.min(100, (100 * memory) / top)}%`;
      bar.className = `mx-card${fits ? " mx-fits" : ""}${memory > top ? " ex-longer" : ""}`;
      verdict.textContent = fits ? `${inPercent(total / memory)} full by then` :
        `at least ${inFull(Math.ceil(total / memory))} of them`;
    }
  }

  const nodes = [
    make("div", "ex-controls mx-controls", {}, Object.values(controls).map(({ node }) => node)),
    make("div", "mx-presets", {}, presets), status, board, make("div", "ex-legend", {}, keys),
  ];
  return { nodes, redraw };
}

export default explorer("memory-bar", build);
