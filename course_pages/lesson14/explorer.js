// The bowl of a budget. All curves come from Python; here they are looked up, scaled and drawn.

const LEGEND = { loss: "the fitted law", band: "between fits without the largest budgets", runs: "runs of about this budget",
  best: "the least loss" };

export const amount = (n) => {
  const [size, name] = [[1e15, " quadrillion"], [1e12, " trillion"], [1e9, " billion"], [1e6, " million"], [1e3, " thousand"]]
    .find(([size]) => n >= size) ?? [1, ""];
  return `${Number((n / size).toPrecision(3))}${name}`;
};

export function inWords({ best: [n, d, loss], flops }) {
  return `${flops.toExponential(2)} FLOPs buy ${amount(n)} parameters and ${amount(d)} tokens, ` +
    `${Number((d / n).toPrecision(3))} tokens a parameter, for a loss of ${fixed(loss, 3)} nats.`;
}

// One bowl in a box of 1000 × 100: from the lowest loss of all that is drawn to a little above the rim.
export function shapes({ x: [first, last], loss, low, high, runs, best }) {
  const all = [...loss, ...low, ...high, ...runs.map((run) => run[1])];
  const [bottom, top] = [Math.min(...all), Math.max(...all)];
  const across = (log) => (1000 * (log - first)) / (last - first);
  const down = (each) => 4 + (92 * (top - each)) / (top - bottom);
  const line = (values) => values.map((each, i) => `${(1000 * i) / (values.length - 1)} ${down(each)}`);
  return { bottom, top, paths: {
    band: `M${line(high).join("L")}L${line(low).reverse().join("L")}z`,
    loss: `M${line(loss).join("L")}`,
    best: `M${across(Math.log10(best[0]))} 0V100`,
    runs: runs.map(([log, each]) => rect(across(log) - 5, down(each) - 2, 10, 4)).join(""),
  } };
}

function build({ table, state, controls, offers }) {
  const status = makeStatus();
  const chart = makeChart("bw", "bowl", ["band", "runs"], ["loss", "best"]);
  const [small, large, most, least] = [span(), span(), span(), span()];
  function redraw() {
    const bowl = table[state.fit][offers.times.values.indexOf(state.times)];
    const { bottom, top, paths } = shapes(bowl);
    setText(status, inWords(bowl));
    chart.draw(1000, 100, paths, `Loss against parameters. ${status.textContent}`);
    [small, large].forEach((node, i) => { node.textContent = amount(10 ** bowl.x[i]); });
    most.textContent = `${fixed(top, 2)} nats`;
    least.textContent = fixed(bottom, 2);
  }
  const nodes = [
    make("div", "ex-controls", {}, Object.values(controls).map(({ node }) => node)), status,
    make("div", "bw-stage", {}, [makeAxis("ex-y", most, least), chart.svg, makeAxis("ex-x", small, "parameters →", large)]),
    makeLegend("bw", LEGEND),
  ];
  return { nodes, redraw };
}

export default explorer("bowl", build);
