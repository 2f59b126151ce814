// The cube of ranks. Groups, bytes and seconds come from Python; here they are looked up, added and drawn.

const AXES = ["tensor", "data", "pipeline"];

// The groups of the rank that is looked at, and what they cost: axis → { group, torn, bytes, seconds }.
export function look(table, { model, order, machine, tensor, data, pipeline, rank }) {
  const shape = `${pipeline}-${data}-${tensor}`;
  const groups = table.groups[order][shape][rank];
  const stage = table.stage[order][shape][rank];
  return Object.fromEntries(AXES.map((axis) => {
    const torn = new Set(groups[axis].map((each) => Math.floor(each / machine))).size > 1;
    const [bytes, inside, across] = table.sent[model][shape][stage][axis];
    return [axis, { group: groups[axis], torn, bytes, seconds: torn ? across : inside }];
  }));
}

const inSeconds = (seconds) => `${seconds < 1 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;

function build({ table, state, controls }) {
  const status = makeStatus();
  const machines = make("div", "cx-machines");
  const rows = Object.fromEntries(AXES.map((axis) => {
    const [who, where, cost] = [span(), span(), span("cx-cost")];
    return [axis, { who, where, cost, nodes: [makeKey(axis, table.colors[axis]), who, where, cost] }];
  }));
  const board = make("div", "cx-board", {}, AXES.flatMap((axis) => rows[axis].nodes));

  // A box for each machine, in it a cell for each rank; a cell has the colour of the axis along which it is met.
  function draw(found) {
    const size = state.tensor * state.data * state.pipeline;
    const along = {};
    AXES.forEach((axis) => found[axis].group.forEach((each) => { along[each] = axis; }));
    const boxes = [];
    for (let first = 0; first < size; first += state.machine) {
      const cells = [...Array(state.machine).keys()].map((place) => {
        const each = first + place;
        const cell = span("cx-cell", `${each}`);
        if (each === state.rank) cell.classList.add("cx-self");
        else if (along[each]) { cell.classList.add("cx-met"); cell.style.setProperty("--ex-color", table.colors[along[each]]); }
        return cell;
      });
      boxes.push(make("div", "cx-machine", {}, [span("cx-title", `machine ${first / state.machine}`), ...cells]));
    }
    machines.replaceChildren(...boxes);
    const told = AXES.map((axis) => `along ${axis} ${found[axis].group.filter((each) => each !== state.rank).join(", ")}`);
    label(machines, `${size} ranks in ${plural(boxes.length, "machine")}; rank ${state.rank} meets ${told.join("; ")}`, "img");
  }

  function redraw() {
    const found = look(table, state);
    draw(found);
    const torn = AXES.filter((axis) => found[axis].torn);
    const total = sum(AXES.map((axis) => found[axis].seconds));
    const [busy, idle] = table.computing[state.model][`${state.pipeline}-${state.data}-${state.tensor}`];
    setText(status, `In a step rank ${state.rank} computes for ${inSeconds(busy)}, idles for ${inSeconds(idle)} and sends for `
      + `${inSeconds(total)}; over the network along ${torn.join(" and ") || "no axis"}.`);
    AXES.forEach((axis) => {
      const { who, where, cost } = rows[axis];
      const { group, torn: far, bytes, seconds } = found[axis];
      who.textContent = `with ${group.filter((each) => each !== state.rank).join(", ")}`;
      where.textContent = far ? "over the network" : "inside its machine";
      where.className = far ? "cx-far" : "";
      cost.textContent = `${bytes}, ${inSeconds(seconds)}`;
    });
  }

  const note = "512 sequences in a step, one in a micro-batch. A100s: 300 GB/s inside a machine, 25 GB/s to another; "
    + "seconds are bytes by that speed, one axis after the other, with nothing hidden behind computation. Computing is at "
    + "150 TFLOP/s, about half of the peak; idle is the bubble of 1F1B.";
  const nodes = [
    make("div", "ex-controls cx-controls", {}, Object.values(controls).map(({ node }) => node)), status, machines, board,
    make("p", "ex-note", { textContent: note }),
  ];
  return { nodes, redraw };
}

export default explorer("cube", build);
