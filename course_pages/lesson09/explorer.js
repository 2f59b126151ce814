// A pipeline schedule as a Gantt chart whose actions can be moved. Orders and sentences come from Python; here an order
// is played again after every move, at unit costs: F, B and W take 1 for all stages of a rank together, BW takes 2.

const LEGEND = { F: "forward", BW: "backward", B: "B: the input's gradient", W: "W: the weights' gradients" };
const COST = { F: 1, B: 1, W: 1, BW: 2 };
const BEFORE = { B: ["F"], BW: ["F"], W: ["F", "B"] };

// Rows of actions from what Python writes: "F0 BW0", or "F0@4" for a stage with another number than the rank's.
export function parse(text) {
  return text.split("\n").map((line, rank) => {
    const row = [];
    for (const word of line.split(" ")) {
      const [, kind, number, stage] = word.match(/^([A-Z]+)(\d+)(?:@(\d+))?$/);
      if (kind === "U") row.at(-1).words += ` ${word}`; // an update stays behind its backward pass
      else row.push({ kind, number: Number(number), stage: Number(stage ?? rank), rank, words: word });
    }
    return row;
  });
}

export const written = (rows) => rows.map((row) => row.map(({ words }) => words).join(" ")).join("\n");

// What an action waits for: whose end, in words, and on which stage it is made.
function needed({ kind, stage, number }, stages) {
  const forward = kind === "F";
  const from = forward ? stage - 1 : stage + 1;
  if (kind === "W" || from < 0 || from === stages) return null;
  const message = `the ${forward ? "activation" : "gradient"} of micro-batch ${number} for stage ${stage}`;
  return { key: `${forward ? "F" : "B"} ${from} ${number}`, message, from };
}

// Every rank takes its actions in order, each as soon as the rank is free and its message is there.
export function play(rows) {
  const stages = 1 + Math.max(...rows.flat().map(({ stage }) => stage));
  const [part, ends, spans] = [rows.length / stages, {}, rows.map(() => [])];
  let going = true;
  while (going) {
    going = false;
    rows.forEach((row, rank) => {
      for (let action; (action = row[spans[rank].length]); going = true) {
        const need = needed(action, stages);
        if (need && !(need.key in ends)) break;
        const start = Math.max(spans[rank].at(-1)?.end ?? 0, need ? ends[need.key] : 0);
        const end = start + COST[action.kind] * part;
        ends[`${action.kind[0]} ${action.stage} ${action.number}`] = end;
        spans[rank].push({ action, start, end });
      }
    });
  }
  const stuck = rows.map((row, rank) => row[spans[rank].length]).filter(Boolean);
  const end = Math.max(...spans.map((row) => row.at(-1)?.end ?? 0));
  const busy = sum(spans.flat().map((span) => span.end - span.start));
  return { spans, stages, stuck, end, busy, idle: end * rows.length - busy, peaks: rows.map((row) => peak(row) * part) };
}

function peak(row) {
  let held = 0;
  return Math.max(...row.map(({ kind }) => (held += { F: 1, BW: -1, B: 0, W: -1 }[kind])));
}

// Why ranks cannot carry these rows out, in Python's words; "" if they can.
export function fault(rows, table) {
  const name = ({ kind, number, stage }) =>
    `${kind}${number} (the ${table.kinds[kind]} of micro-batch ${number} on stage ${stage})`;
  for (const row of rows) {
    for (const [i, action] of row.entries()) {
      const isFirst = (kind) => (each) => each.kind === kind && each.stage === action.stage && each.number === action.number;
      const kind = (BEFORE[action.kind] ?? []).find((each) => row.findIndex(isFirst(each)) > i);
      if (kind) return `rank ${action.rank}: ${name(action)} comes before ${kind}${action.number}: ${table.reasons[kind]}`;
    }
  }
  const { stuck, stages } = play(rows);
  if (!stuck.length) return "";
  const waits = new Map(stuck.map((action) => [action.rank, { action, ...needed(action, stages) }]));
  const peer = (rank) => rows.findIndex((row) => row.some(({ stage }) => stage === waits.get(rank).from));
  const path = [stuck[0].rank];
  while (!path.includes(peer(path.at(-1)))) path.push(peer(path.at(-1)));
  path.splice(0, path.indexOf(peer(path.at(-1))));
  const told = path.map((rank) => (peer(rank) === rank ? table.waits_for_itself : table.waits).replace("{rank}", rank)
    .replace("{action}", name(waits.get(rank).action)).replace("{message}", waits.get(rank).message).replace("{peer}", peer(rank)));
  return `deadlock: ${told.join("; ")}. ${path.length > 1 ? "Each waits for the next" : "It waits for itself"}, so nobody can go on`;
}

function summarize({ end, busy, idle, peaks }, ranks) {
  return `Done after ${Number(end.toFixed(2))} units. Bubble: ${inPercent(idle / (end * ranks))} of all time, ` +
    `${inPercent(idle / busy)} over the ideal. In flight at most, from rank 0 on: ${peaks.map((each) => Number(each.toFixed(2))).join(", ")}.`;
}

// The chart: a row of buttons for each rank, each as long as its action. `onPick` learns which one was clicked.
function makeChartOfRows({ spans, end }, onPick) {
  const many = spans.map((row, rank) => row.map(({ action, start, end: until }, i) => {
    const [number, share] = [String(action.number), (until - start) / end];
    const text = share > 0.009 * number.length + 0.001 ? number : "";
    const node = makeButton(text, "", () => onPick(rank, i), `px-bar px-${action.kind}`);
    Object.assign(node.style, { left: `${(100 * start) / end}%`, width: `${100 * share}%` });
    node.classList.toggle("px-later", action.stage >= spans.length);
    return label(node, `rank ${rank}: ${action.words}, stage ${action.stage}, from ${start} to ${until}`);
  }));
  const node = make("div", "px-chart", {}, many.flatMap((row, rank) =>
    [span("px-rank", `rank ${rank}`), label(make("div", "px-row", {}, row), `rank ${rank}`, "group")]));
  walk(node, many);
  const press = (picked) => many.forEach((row, rank) => row.forEach((each, i) =>
    each.setAttribute("aria-pressed", String(picked?.rank === rank && picked.place === i))));
  return { node, press };
}

function build({ table, state, change, controls }) {
  let [rows, chart, picked, drawn] = [null, null, null, ""];
  const [status, told, place] = [makeStatus("px-summary"), makeStatus("px-told"), make("div")];
  const HINT = "Click an action to take it, then move it.";
  const pick = (rank, i) => { picked = { rank, place: i }; chart.press(picked); enable(); setText(told, `${rows[rank][i].words} taken.`); };
  const buttons = [["◀ earlier", -1], ["later ▶", 1]].map(([text, by]) => makeButton(text, `move ${text.replace(/\W/g, "")}`, () => move(by)));
  const reset = makeButton("as it was", "undo all moves", () => { setText(told, HINT); change({ moved: "" }); });
  const enable = () => {
    buttons.forEach((node, i) => { node.disabled = !picked || !rows?.[picked.rank][picked.place + 2 * i - 1]; });
    reset.disabled = !state.moved;
  };
  function move(by) {
    const { rank, place: from } = picked;
    const other = rows.map((row) => [...row]);
    [other[rank][from], other[rank][from + by]] = [other[rank][from + by], other[rank][from]];
    const [taken, passed, why] = [rows[rank][from].words, rows[rank][from + by].words, fault(other, table)];
    setText(told, why ? `Not possible. ${why[0].toUpperCase()}${why.slice(1)}.` : `${taken} now stands ${by < 0 ? "before" : "behind"} ${passed} on rank ${rank}.`);
    told.classList.toggle("px-refused", Boolean(why));
    if (why) return;
    picked.place += by;
    change({ moved: written(other) });
  }
  function redraw() {
    const key = [state.schedule, state.stages, state.micro_batches].join();
    if (drawn && drawn !== key) [state.moved, picked] = ["", null];
    if (drawn !== key) setText(told, HINT);
    drawn = key;
    const order = table.orders[state.schedule][state.stages][state.micro_batches];
    rows = order.why ? null : parse(state.moved || order);
    if (!state.moved) told.classList.remove("px-refused");
    const result = rows && play(rows);
    chart = rows && makeChartOfRows(result, pick);
    place.replaceChildren(...(chart ? [chart.node] : []));
    chart?.press(picked);
    setText(status, rows ? summarize(result, rows.length) : order.why);
    enable();
  }
  const moves = make("div", "px-moves", {}, [...buttons, reset]);
  const fields = make("div", "ex-controls px-controls", {}, Object.values(controls).map((each) => each.node));
  return { nodes: [fields, status, place, moves, told, makeLegend("px", LEGEND)], redraw };
}

export default explorer("pipeline", build, ["moved"]);
