// The matmul explorer's face. How every tensor lies, and what is sent, comes from Python; here it is drawn.

const LEGEND = { own: "a stripe: one rank has it", copy: "grey: every rank has a copy", terms: "a stack: terms of a sum, one on each rank" };
const WORDS = { whole: "whole on every rank", terms: "a term of the sum on each rank" };

const side = (n) => `${Math.round(3.7 * Math.sqrt(n))}px`;

// What a rank, or everyone (-1), has of a tensor.
export function holds([name, rows, columns, lies], ranks, rank) {
  if (rank < 0 || lies === "whole") return WORDS[lies] ?? `cut by ${lies}`;
  if (lies === "terms") return `rank ${rank} holds its term`;
  const part = (lies === "rows" ? rows : columns) / ranks;
  return `rank ${rank} holds ${lies} ${rank * part} to ${(rank + 1) * part - 1}`;
}

function makeTensor(stop, ranks, chosen, colors) {
  const [name, rows, columns, lies] = stop;
  const parts = Array.from({ length: lies === "whole" ? 1 : ranks }, (_, rank) => {
    const part = span(`mm-part${chosen < 0 || chosen === rank || lies === "whole" ? "" : " mm-faded"}`);
    if (lies !== "whole") part.style.background = colors[rank];
    if (lies === "terms") {
      const [near, far] = [(rank * 8) / ranks, 8 - (rank * 8) / ranks];
      Object.assign(part.style, { inset: `${near}px ${far}px ${far}px ${near}px`, zIndex: chosen === rank ? 1 : 0 });
    }
    return part;
  });
  const box = make("div", `mm-box mm-${lies}`, {}, parts);
  box.style.width = side(columns);
  box.style.height = side(rows);
  const words = `${name}, ${rows} × ${columns}: ${holds(stop, ranks, chosen)}`;
  return label(make("div", "mm-tensor", { title: words }, [span("mm-name", name), box, span("mm-size", `${rows} × ${columns}`)]), words, "img");
}

function makeSign(behind, sent) {
  if (!sent) return make("div", "mm-sign", { textContent: behind });
  return make("div", "mm-sign mm-message", {}, [span("", behind), span("mm-arrow", "→"), span("", sent)]);
}

function build({ table, state, controls }) {
  const [stage, status, note] = [make("div", "mm-stage"), makeStatus(), make("p", "ex-note mm-note")];

  function redraw() {
    const { first, second, ranks, rank } = state;
    const way = table.ways[`${first},${second},${ranks}`];
    stage.replaceChildren(...way.stops.flatMap((stop) =>
      [makeTensor(stop, ranks, rank, table.colors), ...(stop[4] ? [makeSign(stop[4], stop[5])] : [])]));
    setText(status, way.told);
    const weights = way.stops.filter(([name]) => name === "A" || name === "B");
    const own = weights.map((stop) => `of ${stop[0]}: ${holds(stop, ranks, rank)}`).join("; ");
    setText(note, rank < 0 ? "Look at one rank to see which part of each matrix it holds." : `Weights, ${own}.`);
  }

  const nodes = [
    make("div", "ex-controls mm-controls", {}, Object.values(controls).map(({ node }) => node)),
    stage, status, note, makeLegend("mm", LEGEND),
  ];
  return { nodes, redraw };
}

export default explorer("matmul", build);
