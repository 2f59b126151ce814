// Batch × accumulation × memory. The numbers come in a table from Python; here they are only chosen and drawn.

const MOST_DRAWN = 16; // pieces of a step; of more, the first ones are drawn

const inGib = (nbytes, digits = 1) => fixed(nbytes / GIB, nbytes < 100 * GIB ? digits : 0);

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

function makeBar(account, micro, state, { colors, gpus }, top, onClick) {
  const [total, pieces] = [sum(account), state.global_batch / micro];
  const fits = total <= gpus[state.gpu];
  const parts = Object.values(colors).map((background, i) => {
    const part = make("i", "ax-part");
    part.style.background = background;
    part.style.height = `${(100 * account[i]) / top}%`;
    return part;
  }).reverse();
  const column = make("span", `ax-column${total > top ? " ax-cut" : ""}`, {}, parts);
  const chosen = micro === state.micro_batch;
  const words = `${plural(pieces, "piece")} of ${micro}: ${inGib(total)} GiB, ${fits ? "fits" : "too much"}`;
  const bar = makeButton("", words, () => onClick(micro), `ax-bar${chosen ? " ax-chosen" : ""}${fits ? "" : " ax-over"}`);
  bar.append(column, span("ax-size", micro), span("ax-total", inGib(total))); // below: no number hides the line
  bar.setAttribute("aria-pressed", String(chosen));
  return bar;
}

function tell(state, account, pieces, memory) {
  const total = sum(account);
  const verdict = total <= memory
    ? `The ${state.gpu} shows a program ${inGib(memory, 2)} GiB: it fits, with ${inGib(memory - total, 2)} GiB to spare for CUDA itself.`
    : `The ${state.gpu} shows a program ${inGib(memory, 2)} GiB: ${inGib(total - memory, 2)} too few.`;
  const cut = pieces === 1 ? "in one piece" : `as ${pieces} pieces of ${state.micro_batch}`;
  return `${plural(state.global_batch, "sequence")} ${cut}: ${inGib(total, 2)} GiB at the peak, ${inGib(account[3])} of them activations. ${verdict}`;
}

function build({ table, state, change, controls, offers }) {
  const choose = (size) => {
    const pressed = bars.contains(document.activeElement);
    change({ micro_batch: size });
    if (pressed) bars.querySelector(".ax-chosen").focus(); // the bar that had the focus was made anew
  };
  const [status, bars] = [makeStatus(), make("div", "ax-bars")];
  const line = make("div", "ax-line", {}, [span()]);
  const areas = ["activations", "gradients", "optimizer", "parameters"];
  const film = makeChart("ax", "film", areas, ["memory"]);
  for (const name of areas) film.paths[name].style.setProperty("--ex-color", table.colors[name]);
  const [filmTitle, filmEnd] = [make("b", ""), span()];

  function redraw() {
    const memory = table.gpus[state.gpu];
    const rows = table.peaks[state.optimizer][state.global_batch];
    const account = rows[offers.micro_batch.values.indexOf(state.micro_batch)];
    const pieces = state.global_batch / state.micro_batch;
    const largest = Math.max(memory, ...rows.map(sum));
    // Low bars stay readable beside a high one: what is far above the GPU's memory and the chosen bar is cut off.
    const top = Math.min(1.12 * largest, 2 * Math.max(memory, Math.min(sum(account), 4 * memory)));
    setText(status, tell(state, account, pieces, memory));
    bars.replaceChildren(line, ...rows.map((row, k) => makeBar(row, offers.micro_batch.values[k], state, table, top, choose)));
    line.style.setProperty("--ax-level", memory / top);
    line.firstChild.textContent = `${state.gpu}: ${gib(memory, 1)}`;
    const drawn = Math.min(pieces, MOST_DRAWN);
    film.draw(drawn, top / GIB, stepShapes(account.map((nbytes) => nbytes / GIB), drawn, memory / GIB, top / GIB),
      `Memory over one step of ${plural(pieces, "piece")}`);
    filmTitle.textContent = drawn < pieces ? `The first ${drawn} of ${pieces} pieces` : `One step, ${plural(pieces, "piece")}`;
    filmEnd.textContent = drawn < pieces ? "and so on →" : "optimizer step →";
  }

  const nodes = [
    make("div", "ex-controls ax-controls", {}, Object.values(controls).map(({ node }) => node)), status,
    make("div", "ax-stage", {}, [
      make("div", "ax-pane", {}, [make("b", "", { textContent: "Peak for each size of a piece (GiB)" }), bars,
        makeAxis("ax-below", "sequences in a piece, and GiB")]),
      make("div", "ax-pane", {}, [filmTitle, make("div", "ax-frame", {}, [film.svg]), makeAxis("ax-ends", "time", filmEnd)]),
    ]),
    make("div", "ex-legend", { ariaHidden: "true" }, Object.entries(table.colors).map(([name, color]) => makeKey(name, color))),
  ];
  return { nodes, redraw };
}

export default explorer("accumulation", build);
