// Tokens queue for experts. What the router says, capacities and formulas come from Python; here places are given out
// again after every move, as `find_places` does: first choices come before second ones, and in each the order is the tokens'.

const CHOICES = ["first choice", "second choice"];
const COSTS = {
  parameters: "Parameters, against one dense MLP",
  flops: "FLOPs of a token's forward pass, against that MLP",
  rows: "Rows that the busiest rank computes, against the mean",
  sent: "Sent in four all-to-alls by the busiest rank, against all experts getting equally many",
};

// Queues of { token, choice, kept, place }, how often each choice was dropped, and [here, against] of each cost.
export function look(table, offers, state) {
  const { tokens, experts, top_k: k, ranks } = state;
  const at = (name) => offers[name].values.indexOf(state[name]);
  const wanted = table.choices[experts][at("skew")].slice(0, tokens).map((each) => each.slice(0, k));
  const capacity = table.capacity[experts][at("tokens")][k - 1][at("capacity_factor")];
  const queues = Array.from({ length: experts }, () => []);
  for (let choice = 0; choice < k; choice++) {
    wanted.forEach((each, token) => {
      const queue = queues[each[choice]];
      queue.push({ token, choice, place: queue.length, kept: capacity === null || queue.length < capacity });
    });
  }
  const [sent, rows] = [Array(ranks).fill(0), Array(ranks).fill(0)];
  const kept = wanted.map(() => 0);
  queues.forEach((queue, expert) => queue.filter((each) => each.kept).forEach(({ token }) => {
    const [home, owner] = [Math.floor((token * ranks) / tokens), Math.floor((expert * ranks) / experts)];
    kept[token] += 1;
    rows[owner] += 1;
    if (home !== owner) for (const rank of [home, owner]) sent[rank] += 2 * table.row; // there and back, in two passes
  }));
  const places = sum(rows);
  const costs = {
    parameters: [table.parameters[experts], table.dense[0]],
    flops: [table.flops[experts][k - 1], table.dense[1]],
    rows: [Math.max(...rows), places / ranks],
    sent: [Math.max(...sent), table.sent[at("tokens")][k - 1][at("capacity_factor")][at("ranks")]],
  };
  const lost = kept.flatMap((n, token) => (n ? [] : [token]));
  const empty = capacity === null ? null : experts * capacity - places;
  return { wanted, queues, capacity, lost, dropped: tokens * k - places, empty, costs };
}

export function verdict({ capacity, lost, dropped, empty }, { tokens, experts, top_k: k }) {
  if (capacity === null) return "No limit: nobody is dropped, and queues may be of any length.";
  const fate = dropped ? `${dropped} of ${tokens * k} choices are dropped` : "nobody is dropped";
  const losers = lost.length > 1 ? `${lost.length} tokens lose` : `${lost.length ? "one" : "no"} token loses`;
  const without = k > 1 && dropped ? `, ${losers} both` : "";
  return `${experts} experts with ${plural(capacity, "place")} each: ${fate}${without}; ${empty} of ${experts * capacity} places stay empty.`;
}

// "token 5 wants expert 2, where it has place 4, and expert 7, which has no place left"
export function fateOf({ queues, wanted }, token) {
  const parts = wanted[token].map((expert, choice) => {
    const { place, kept } = queues[expert].find((each) => each.token === token && each.choice === choice);
    return `expert ${expert}${kept ? `, where it gets place ${place + 1}` : ", which has no place left for it"}`;
  });
  return `Token ${token} wants ${parts.join(", and ")}.`;
}

const million = (n) => `${(n / 1e6).toFixed(1)} million`;
const amount = (n) => (n >= 1e6 ? `${(n / 1e6).toFixed(2)} MB` : `${(n / 1e3).toFixed(1)} kB`);
const SHOWN = { parameters: million, flops: million, rows: (n) => String(Number(n.toFixed(1))), sent: amount };

function build({ table, state, change, controls, offers }) {
  const [status, board, fate, lostOnes] = [makeStatus(), make("div", "xp-board"), makeStatus("xp-fate"), span("xp-lost")];
  const rows = Object.entries(COSTS).map(([name, words]) => {
    const [here, ratio] = [span("xp-here"), span("xp-ratio")];
    return { name, here, ratio, nodes: [span("xp-what", words), here, ratio] };
  });
  const costs = make("div", "xp-costs", {}, rows.flatMap(({ nodes }) => nodes));

  function makeQueue(queue, expert, { capacity }, most) {
    const cells = queue.map(({ token, choice, kept, place }) => {
      const cell = span(`xp-cell${kept ? "" : " xp-dropped"}${token === state.token ? " xp-picked" : ""}`, token);
      cell.style.setProperty("--ex-color", table.colors[choice]);
      cell.style.gridColumn = place + 1;
      cell.onclick = () => change({ token });
      return cell;
    });
    const places = make("div", "xp-places");
    places.style.gridColumn = `1 / span ${capacity ?? most}`;
    places.hidden = capacity === null;
    const dropped = queue.filter(({ kept }) => !kept).length;
    const empty = Math.max(0, (capacity ?? 0) - queue.length);
    const told = [dropped ? `${dropped} dropped` : "", empty ? `${empty} empty` : ""].filter(Boolean).join(", ");
    const track = make("div", "xp-track", {}, [places, ...cells]);
    label(track, `expert ${expert}: ${plural(queue.length, "token")} in the queue${told ? `, ${told}` : ""}`, "img");
    return [make("span", "xp-name", {}, [span("xp-word", "expert "), `${expert}`]), track, span("xp-told", told)];
  }

  function redraw() {
    const shown = look(table, offers, state);
    const most = Math.max(shown.capacity ?? 0, ...shown.queues.map((queue) => queue.length));
    setText(status, verdict(shown, state));
    board.style.setProperty("--xp-most", most);
    board.classList.toggle("xp-numbered", most <= 20);
    board.replaceChildren(...shown.queues.flatMap((queue, expert) => makeQueue(queue, expert, shown, most)));
    setText(fate, fateOf(shown, state.token));
    const [first, more] = [shown.lost.slice(0, 12), shown.lost.length - 12];
    lostOnes.textContent = `Without any expert: ${first.join(", ") || "nobody"}${more > 0 ? ` and ${more} more` : ""}.`;
    rows.forEach(({ name, here, ratio }) => {
      const [mine, against] = shown.costs[name];
      here.textContent = `${SHOWN[name](mine)} : ${SHOWN[name](against)}`;
      ratio.textContent = against ? `${(mine / against).toFixed(1)} ×` : "";
    });
  }

  const note = "A made-up router; 1,024 features a token, 4,096 in an expert, 16-bit numbers. A dropped choice adds nothing to its "
    + "token; an empty place is computed in vain where all experts get batches of one size.";
  const keys = CHOICES.map((words, i) => makeKey(words, table.colors[i]));
  keys.push(span("ex-key xp-key-dropped", "dropped"), span("ex-key xp-key-empty", "empty place"));
  const fields = make("div", "ex-controls xp-controls", {}, Object.values(controls).map(({ node }) => node));
  const nodes = [
    fields, status, board, make("div", "ex-legend", { ariaHidden: "true" }, keys),
    make("div", "xp-tokens", {}, [fate, lostOnes]), costs, make("p", "ex-note", { textContent: note }),
  ];
  return { nodes, redraw };
}

export default explorer("experts", build);
