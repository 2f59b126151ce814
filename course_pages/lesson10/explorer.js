// ZeRO against real cards. All numbers come from Python; here they are looked up, added and drawn.

const WORDS = ["weights", "gradients", "optimizer state", "activations", "passing through"];

// What is shown for each stage: bytes by category, their sum, whether they fit, and the words for the rest.
export function look(table, offers, { model, gpu, ranks, sequences }) {
  const [n, s] = [offers.ranks.values.indexOf(ranks), offers.sequences.values.indexOf(sequences)];
  return table.states[model][n].map((states, stage) => {
    const passing = table.passing[model][s] + (stage === 3 ? table.gathered[model] : 0);
    const held = [...states, table.activations[model][s], passing];
    const [sent, seconds] = [table.sent[model][n][stage], table.seconds[gpu][model][n][stage]];
    return { held, total: sum(held), fits: sum(held) <= table.gpus[gpu], sent, seconds,
      fewest: table.fewest[gpu][model][s][stage] };
  });
}

export function verdict(stages, { model, gpu, ranks, sequences }) {
  const first = stages.findIndex(({ fits }) => fits);
  const where = `${model} on ${inFull(ranks)} × ${gpu}${sequences ? "" : ", states alone"}`;
  if (first === 0) return `${where}: fits without ZeRO.`;
  if (first > 0) return `${where}: fits from stage ${first} on.`;
  const { fewest } = stages[3];
  if (!fewest) return `${where}: does not fit, however many ranks there are.`;
  return `${where}: does not fit. Stage 3 does, from ${inFull(fewest)} ranks on.`;
}

function enough(fewest) {
  return fewest ? `fits from ${plural(fewest, "rank").replace(fewest, inFull(fewest))} on` : "never fits";
}

function build({ table, state, controls, offers }) {
  const status = makeStatus();
  const rows = table.stages.map((name) => {
    const [stack, fewest, sent] = [makeStack(table.colors), span(), span()];
    const facts = make("div", "zx-facts", {}, [stack.total, fewest, sent]);
    return { name, stack, fewest, sent, nodes: [span("zx-name", name), stack.track, facts] };
  });
  const line = span("zx-line");
  const scale = make("div", "zx-scale", {}, [line]);
  const board = make("div", "zx-board", {}, [span(), scale, span(), ...rows.flatMap(({ nodes }) => nodes)]);
  const keys = WORDS.map((words, i) => makeKey(words, table.colors[i]));

  function redraw() {
    const [stages, memory] = [look(table, offers, state), table.gpus[state.gpu]];
    const largest = Math.max(...stages.map(({ total }) => total));
    const top = Math.max(1.3 * memory, Math.min(1.02 * largest, 3 * memory)); // what is longer fades out
    setText(status, verdict(stages, state));
    board.style.setProperty("--ex-limit", `${(100 * memory) / top}%`);
    line.textContent = `${state.gpu}: ${gib(memory)}`;
    stages.forEach(({ held, fewest, sent, seconds }, stage) => {
      const row = rows[stage];
      row.stack.draw(held, memory, top, `Stage ${row.name}: ${namedBytes(WORDS, held)}`);
      row.fewest.textContent = enough(fewest);
      row.sent.textContent = `sends ${sent} in ${seconds}`;
    });
  }

  const note = "Weights and gradients in 16 bits, AdamW with an fp32 copy. A step sends once, over the link between two "
    + "GPUs of one machine; between machines it takes longer. Passing through: in stage 3 whole weights (the ends of the "
    + "model and two blocks), and with sequences the block that is computed again, or three blocks as large as the logits.";
  const nodes = [
    make("div", "ex-controls zx-controls", {}, Object.values(controls).map(({ node }) => node)), status, board,
    make("div", "ex-legend", { ariaHidden: "true" }, keys), make("p", "ex-note", { textContent: note }),
  ];
  return { nodes, redraw };
}

export default explorer("zero", build);
