// Memory against cards. What a moment's bytes are made of comes from Python; here the sums are added, and the largest is the peak.

const PRESETS = {
  "GPT-2 small": { layers: 12, width: 768, batch: 8, seq: 1024 },
  "GPT-2 XL": { layers: 48, width: 1600, batch: 32, seq: 1024 },
  "GPT-3 175B": { layers: 96, width: 12288, batch: 1, seq: 2048 },
};

const WORDS = { forward: "forward pass", backward: "backward pass", "optimizer step": "optimizer's step" };

// Bytes of each part at one moment: the terms, each with its factor.
function bytes(sums, terms) {
  return sums.map((factors) => sum(factors.map((factor, i) => factor * terms[i])));
}

// The peak: the largest of the moments that may be it. And the number of parameters.
export function peak(table, state) {
  const { layers, batch, seq, width, precision, optimizer, attention, recompute } = state;
  const sizes = [layers, batch * seq, seq, width, width / (width < 2048 ? 64 : 128)];
  const terms = table.terms.map((powers) => powers.reduce((product, power, i) => product * sizes[i] ** power, 1));
  const [parameters, states] = bytes(table.states[`${precision} ${optimizer}`], terms);
  const bits = precision === "fp32" ? "fp32" : "16 bits";
  const kinds = [table.passes[`${bits} ${attention} ${recompute} ${batch === 1 ? 1 : "more"}`], table.updates[`${precision} ${optimizer}`]];
  const moments = kinds.flat().map(([phase, sums]) => ({ phase, parts: bytes(sums, terms) }));
  const { phase, parts } = moments.reduce((worst, each) => (sum(each.parts) > sum(worst.parts) ? each : worst));
  const [gradients, activations, temporaries] = parts;
  return { count: parameters / (bits === "fp32" ? 4 : 2), phase,
    account: { parameters, gradients, optimizer: states, activations, temporaries } };
}

export function inWords(nbytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let [value, i] = [nbytes, 0];
  for (; value >= 1024 && i < units.length - 1; i++) value /= 1024;
  return `${value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 })} ${units[i]}`;
}

function summarize({ count, account, phase }, total, gpus) {
  const size = count >= 1e9 ? `${(count / 1e9).toPrecision(3)} billion` : `${Math.round(count / 1e6)} million`;
  const fits = gpus.filter(([, memory]) => total <= memory);
  const verdict = fits.length ? `The smallest card that holds it is the ${fits[0][0]}.` : "No single card holds it.";
  return `${size} parameters: ${inWords(total)} at the peak, in the ${WORDS[phase]}; ${inPercent(account.activations / total)} are activations. ${verdict}`;
}

function build({ table, state, change, controls }) {
  const { gpus, colors } = table;
  const presets = Object.entries(PRESETS).map(([name, preset]) => makeButton(name, "", () => change(preset)));
  const status = makeStatus();
  const stack = makeStack(Object.values(colors));
  const keys = Object.values(colors).map((color) => makeKey("", color));
  const cards = gpus.map(([name, memory]) => {
    const [bar, verdict] = [make("div", "mx-card"), span("mx-verdict")];
    return { memory, bar, verdict, row: [span("mx-name", name), make("div", "ex-track", {}, [bar]), verdict] };
  });
  const rows = [span("mx-name", "at the peak"), stack.track, span()];
  const board = make("div", "mx-board", {}, [...rows, ...cards.flatMap(({ row }) => row)]);

  function redraw() {
    const worst = peak(table, state);
    const { account } = worst;
    const total = sum(Object.values(account));
    const enough = gpus.map(([, memory]) => memory).filter((memory) => memory >= total);
    // The smallest card that is large enough fills the track; where none is, the bar itself does.
    const top = 1.02 * (enough.length ? Math.min(...enough) : total);
    setText(status, summarize(worst, total, gpus));
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
      verdict.textContent = fits ? `${inPercent(total / memory)} full` :
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
