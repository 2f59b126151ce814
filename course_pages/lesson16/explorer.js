// Tiles over a square of scores. States come from Python; here they are drawn, and a finished tile's scores fade.

export function frameOf(table, { rows, columns, causal, step }) {
  const all = table.frames[`${rows},${columns},${causal ? 1 : 0}`];
  const at = Math.min(step, all.length - 1);
  const [tile, skipped, top, total, mixed, read, held] = all[at];
  return { at, of: all.length - 1, tile, skipped, top, total, mixed, read, held };
}

// "now", "done", "hidden" or "ahead": how a score looks.
export function lookOf(query, key, { tile, at, of }, { rows, columns, causal }) {
  if (causal && key > query) return "hidden";
  if (!tile) return "ahead";
  const [q, k] = tile;
  const inRow = query >= q && query < q + rows;
  if (inRow && key >= k && key < k + columns) return "now";
  return at === of || query < q || (inRow && key < k) ? "done" : "ahead";
}

export function told({ at, of, tile, skipped }, { rows, columns }) {
  if (!tile) return `Start: ${plural(of, "tile")} to do, nothing read.`;
  const place = `Tile ${at} of ${of}, queries ${tile[0]} to ${tile[0] + rows - 1}, keys ${tile[1]} to ${tile[1] + columns - 1}: `;
  return place + (skipped ? "every key comes after every query, so it is skipped: nothing is read or computed." :
    "its scores are added to these queries' three numbers, and forgotten.");
}

const shown = (number) => (number === null ? "–" : String(Number(number.toFixed(2))));

function build({ table, state, change, controls }) {
  const size = table.scores.length;
  const cells = table.scores.map((row) => row.map((score) => span("tl-cell", score)));
  const grid = label(make("div", "tl-grid", {}, cells.flat()), "scores, a row for each query", "img");
  const rows = Array.from({ length: size }, () => [span(), span(), span(), span(), span()]);
  const head = ["query", "top", "total", "mixed", "output"].map((word) => span("tl-head", word));
  const numbers = make("div", "tl-numbers", {}, [...head, ...rows.flat()]);
  const [status, bytes, values] = [makeStatus(), make("div", "tl-bytes"), make("div", "tl-bytes")];
  const back = makeButton("◀ back", "one tile back", () => change({ step: Math.max(0, frameOf(table, state).at - 1) }));
  const forward = makeButton("tile ▶", "one tile forward", () => change({ step: frameOf(table, state).at + 1 }));

  function redraw() {
    const frame = frameOf(table, state);
    cells.forEach((row, query) => row.forEach((cell, key) => {
      cell.className = `tl-cell tl-${lookOf(query, key, frame, state)}`;
    }));
    rows.forEach((row, i) => {
      const there = i < frame.top.length;
      const output = there && frame.total[i] ? frame.mixed[i] / frame.total[i] : null;
      const words = there ? [frame.tile[0] + i, frame.top[i], frame.total[i], frame.mixed[i], output] : [];
      row.forEach((cell, j) => setText(cell, there ? shown(words[j]) : ""));
    });
    const { read, held } = table.explicit;
    setText(bytes, `read so far ${inFull(frame.read)} B (all scores in memory: ${inFull(read)} B); ` +
      `held ${inFull(frame.held)} B (${inFull(held)} B)`);
    [back.disabled, forward.disabled] = [frame.at === 0, frame.at === frame.of];
    const [, first] = frame.tile ?? [0, 0];
    setText(values, frame.tile && !frame.skipped ?
      `values of keys ${first} to ${first + state.columns - 1}: ${table.values.slice(first, first + state.columns).join(", ")}` : "");
    setText(status, told(frame, state));
  }
  const bar = make("div", "tl-bar", {}, [back, forward, controls.step.node]);
  const choices = make("div", "tl-bar", {}, [controls.rows.node, controls.columns.node, controls.causal.node]);
  return { nodes: [choices, bar, status, make("div", "tl-both", {}, [grid, numbers]), values, bytes], redraw };
}

export default explorer("tiles", build);
