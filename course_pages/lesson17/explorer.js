// The map of layouts. Costs come from Python; here they are looked up, coloured and set beside published runs.

const TIME = { "at work, or launching": "#0072b2", bubble: "#c4cad0", "sends on the data axis": "#d55e00", rest: "#5f5f5f" };
const SPACE = { "weights, gradients, optimizer": "#e69f00", activations: "#cc79a7", other: "#5f5f5f" };

// A layout's cost, or null where it is not legal: { step, gb, time, space, launches, fits }.
export function costOf(table, { run, gpu, zero, micro, recompute }, tensor, pipeline) {
  const found = table.maps[`${run},${gpu},${zero},${micro},${recompute ? 1 : 0}`]?.[`${tensor},${pipeline}`];
  if (!found) return null;
  const [time, space, launches] = [found.slice(0, 4), found.slice(4, 7), found[7]];
  const gb = sum(space);
  return { step: sum(time), gb, time, space, launches: launches === 1, fits: gb <= table.room[gpu] };
}

// The published run of a cell, on H100s without recompute: [seconds, GB], nulls where it died; undefined without one.
export function dotOf(table, { run, gpu, zero, micro, recompute }, tensor, pipeline) {
  return gpu === "H100" && !recompute ? table.dots[`${run},${zero},${micro}`][`${tensor},${pipeline}`] : undefined;
}

// 0 for the fastest cell that fits, 1 for those that take four times as long or more.
export function depthOf(step, steps) {
  return Math.min(1, Math.log(step / Math.min(...steps)) / Math.log(4));
}

const shade = (d) => `rgb(${[0.9 - 0.75 * d, 0.95 - 0.55 * d, 0.98 - 0.25 * d].map((x) => Math.round(255 * x)).join(" ")})`;

export function told(table, state) {
  const { tensor, pipeline, gpu } = state;
  const name = `Tensor ${tensor}, ${plural(pipeline, "stage")}: `;
  const cost = costOf(table, state, tensor, pipeline);
  if (!cost) return `${name}not legal here. Too many ranks, nothing to cut for ZeRO, or the batch does not divide.`;
  const dot = dotOf(table, state, tensor, pipeline);
  const seen = !dot ? "" : dot[0] === null ? " The published run died." : ` Published: ${fixed(dot[0], 1)} s, ${fixed(dot[1], 0)} GB.`;
  const fits = cost.fits ? "fits" : `does not fit in the ${fixed(table.room[gpu], 0)} GB that can be filled`;
  const floor = cost.launches ? " Its blocks wait for their launches." : "";
  return `${name}${fixed(cost.step, 1)} s a step, ${fixed(cost.gb, 0)} GB on the fullest GPU, which ${fits}.${floor}${seen}`;
}

function makeBar(hues) {
  const parts = Object.values(hues).map((background) => {
    const part = make("div", "");
    part.style.background = background;
    return part;
  });
  const [title, bar] = [make("div", "mx-head"), make("div", "mx-bar", {}, parts)];
  const keys = make("div", "ex-legend", { ariaHidden: "true" }, Object.entries(hues).map(([words, hue]) => makeKey(words, hue)));
  const draw = (sizes, whole, words) => {
    sizes.forEach((size, i) => { parts[i].style.width = `${(100 * size) / whole}%`; });
    setText(title, words);
    label(bar, words, "img");
  };
  return { node: make("div", "", {}, [title, bar, keys]), draw };
}

function build({ table, state, change, controls }) {
  const status = makeStatus();
  const places = [...table.pipeline].reverse().map((pipeline) => table.tensor.map((tensor) => {
    const lines = [span(), span()];
    const button = makeButton("", "", () => change({ tensor, pipeline }), "mx-cell");
    button.append(...lines);
    return { tensor, pipeline, button, lines };
  }));
  const rows = places.flatMap((row) => [span("mx-head", plural(row[0].pipeline, "stage")), ...row.map(({ button }) => button)]);
  const feet = [span("mx-head", "tensor"), ...table.tensor.map((t) => span("mx-head", `${t}`))];
  const map = make("div", "mx-map", {}, [...rows, ...feet]);
  walk(map, places.map((row) => row.map(({ button }) => button)), true);
  const [time, space] = [makeBar(TIME), makeBar(SPACE)];

  function redraw() {
    const costs = places.flat().map((place) => ({ ...place, cost: costOf(table, state, place.tensor, place.pipeline) }));
    const steps = costs.filter(({ cost }) => cost?.fits).map(({ cost }) => cost.step);
    for (const { tensor, pipeline, button, lines, cost } of costs) {
      const depth = cost?.fits ? depthOf(cost.step, steps) : 0;
      const dot = dotOf(table, state, tensor, pipeline);
      const here = tensor === state.tensor && pipeline === state.pipeline;
      const look = !cost ? "mx-none" : !cost.fits ? "mx-full" : depth > 0.55 ? "mx-dark" : "";
      button.className = `mx-cell ${look} ${here ? "mx-here" : ""}`;
      button.style.backgroundColor = cost?.fits ? shade(depth) : "";
      setText(lines[0], !cost ? "–" : cost.fits ? `${fixed(cost.step, 1)} s` : `${fixed(cost.gb, 0)} GB`);
      setText(lines[1], !cost || !dot ? "" : dot[0] === null ? "● died" : `● ${fixed(dot[0], 1)} s`);
      label(button, told(table, { ...state, tensor, pipeline }));
    }
    const cost = costOf(table, state, state.tensor, state.pipeline);
    time.draw(cost?.time ?? [0, 0, 0, 0], cost?.step ?? 1, cost ? `a step: ${fixed(cost.step, 1)} s` : "a step");
    const most = table.room[state.gpu];
    space.draw(cost?.space ?? [0, 0, 0], Math.max(most, cost?.gb ?? 0), cost ? `the fullest GPU: ${fixed(cost.gb, 0)} of ${fixed(most, 0)} GB` : "the fullest GPU");
    setText(status, told(table, state));
  }
  const note = make("p", "ex-note", { textContent: "● a published run (H100, no recompute). 256 sequences of 4,096 tokens in a step." });
  const choices = make("div", "ex-controls", {}, Object.values(controls).map(({ node }) => node));
  return { nodes: [choices, status, make("div", "mx-both", {}, [map, make("div", "mx-side", {}, [time.node, space.node])]), note], redraw };
}

export default explorer("map", build);
