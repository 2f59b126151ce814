// A restart: which samples ranks read before a kill and after it. Every rank's samples come from Python; here they are
// cut where the kill is.

// Samples of each rank before and after, and those that nobody reads, or two ranks.
export function look(table, { scheme, world_before, world_after, step }) {
  const [deal, read] = [table.dealt[scheme], (world) => (step * table.batch) / world];
  const before = deal[world_before].map((mine) => mine.slice(0, read(world_before)));
  const after = deal[world_after].map((mine) => mine.slice(read(scheme === "by function" ? world_after : world_before)));
  const [first, second] = [new Set(before.flat()), new Set(after.flat())];
  const all = Array.from({ length: table.samples }, (_, sample) => sample);
  const lost = new Set(all.filter((sample) => !first.has(sample) && !second.has(sample)));
  const twice = new Set(all.filter((sample) => first.has(sample) && second.has(sample)));
  return { before, after, first, second, lost, twice, all };
}

export function verdict({ lost, twice, all }) {
  if (!lost.size && !twice.size) return `All ${all.length} samples are read, each once.`;
  const parts = [lost.size ? `${plural(lost.size, "sample")} of ${all.length} read by nobody` : "", twice.size ? `${twice.size} read twice` : ""];
  return `${parts.filter(Boolean).join(", ")}. Nothing has said so.`;
}

function build({ table, state, controls }) {
  const [status, board] = [makeStatus(), make("div", "rs-board")];

  function makeRow(name, samples, look, className = "") {
    const cells = samples.map((sample) => {
      const { after, own } = look(sample);
      const cell = span(`rs-cell ${own}`);
      cell.style.setProperty("--ex-color", table.colors[Number(after)]);
      cell.style.gridColumn = sample + 1;
      cell.title = `sample ${sample}`;
      return cell;
    });
    const track = label(make("div", "rs-track", {}, cells), `${name}: samples ${samples.join(", ") || "none"}`, "img");
    return [span(`rs-name ${className}`, name), track];
  }

  function redraw() {
    const shown = look(table, state);
    const whole = (sample) => ({
      after: shown.second.has(sample) && !shown.first.has(sample),
      own: shown.lost.has(sample) ? "rs-lost" : shown.twice.has(sample) ? "rs-again" : "",
    });
    const part = (after) => (sample) => ({ after, own: shown.twice.has(sample) ? "rs-again" : "" });
    setText(status, verdict(shown));
    board.replaceChildren(
      ...makeRow("the epoch", shown.all, whole, "rs-epoch"),
      ...shown.before.flatMap((mine, rank) => makeRow(`before: rank ${rank}`, mine, part(false))),
      ...shown.after.flatMap((mine, rank) => makeRow(`after: rank ${rank}`, mine, part(true))),
    );
  }

  const note = "48 samples, 8 a step. By shard and by stride each rank saves how many samples of its part it has read; by function the run saves its step.";
  const keys = [makeKey("read before the kill", table.colors[0]), makeKey("read after it", table.colors[1]),
    span("ex-key rs-key-lost", "read by nobody"), span("ex-key", "striped: read twice")];
  const fields = make("div", "ex-controls", {}, Object.values(controls).map(({ node }) => node));
  return { nodes: [fields, status, board, make("div", "ex-legend", { ariaHidden: "true" }, keys), make("p", "ex-note", { textContent: note })], redraw };
}

export default explorer("restart", build);
