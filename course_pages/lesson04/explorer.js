// The loss scale, slid across a gradient histogram. All counts come from Python (`scale_data`); this file only draws.

const FATES = ["flushed", "subnormal", "normal", "overflowed"];
const WORDS = ["become 0", "subnormal: fewer digits", "normal", "become inf"];
const FOOT = 0.4; // of a power of ten under each bar, so that a single number has a height too

// Which of the FATES awaits the numbers from 2^place up.
export const fate = (place, borders) => borders.filter((border) => border <= place).length;

export function percent(count, total) {
  const share = (100 * count) / total;
  if (count === 0 || count === total) return `${share} %`;
  if (share < 0.01) return "under 0.01 %";
  if (share > 99.99) return "over 99.99 %";
  return `${share < 1 || share > 99 ? share.toFixed(2) : share.toFixed(1)} %`;
}

// What to make of it: one inf skips the whole step, so that comes first.
export function verdict([flushed, subnormal, normal, overflowed], scale) {
  const total = flushed + subnormal + normal + overflowed;
  const share = (count) => `${inFull(count)} of ${inFull(total)} become`;
  const name = `Scale ${scale}`;
  if (overflowed) return `${name}: ${share(overflowed)} inf. The step is skipped, and the scale must come down.`;
  const lost = flushed ? `${share(flushed)} 0` : "no gradient is lost";
  return `${name}: ${lost}${subnormal ? `, and ${percent(subnormal, total)} lose digits` : ", and none loses digits"}. No overflow.`;
}

// Bars from place `left` to `right`, on a logarithmic axis of `rows` powers of ten, the foot included.
function histogramShapes({ first, counts }, borders, scale, [left, right], rows) {
  const shapes = { flushed: "", subnormal: "", normal: "", overflowed: "" };
  counts.forEach((count, i) => {
    const place = first + i + scale;
    if (!count || place < left || place >= right) return;
    const height = Math.log10(count) + FOOT;
    shapes[FATES[fate(place, borders)]] += rect(place - left + 0.05, rows - height, 0.9, height);
  });
  const [smallest, normal, beyond] = borders.map((border) => Math.max(left, Math.min(right, border)) - left);
  shapes.window = rect(smallest, 0, beyond - smallest, rows);
  shapes.heart = rect(normal, 0, beyond - normal, rows);
  return shapes;
}

// One column for each place of the slider; where anything overflows, the whole column says so.
function overviewShapes(casts, chosen) {
  const shapes = { flushed: "", subnormal: "", normal: "", overflowed: "" };
  casts.forEach((counts, i) => {
    let y = 0;
    for (const f of counts[3] ? [3] : [2, 1, 0]) {
      const height = counts[3] ? 1 : counts[f] / sum(counts);
      shapes[FATES[f]] += rect(i + 0.06, y, 0.88, height);
      y += height;
    }
  });
  shapes.chosen = rect(chosen, 0, 1, 1);
  return shapes;
}

function overviewWords(casts, powers) {
  const clean = powers.filter((_, i) => casts[i][0] === 0 && casts[i][3] === 0);
  if (!clean.length) return "Fates at each scale; at every one some gradients become 0 or inf";
  return `Fates at each scale; nothing becomes 0 or inf from ${clean[0]} to ${clean.at(-1)}`;
}

function build({ table, state, change, controls, offers }) {
  const { values: places, words } = offers.power;
  const powers = words.map((each) => each.split(" = ")[0]);
  const ends = [table.ticks[0][0], table.ticks.at(-1)[0]];
  const status = makeStatus();
  const chart = makeChart("sx", "histogram", ["window", "heart", ...FATES]);
  const overview = makeChart("sx", "overview", FATES, ["chosen"]);
  overview.onColumn((i) => change({ power: places[i] }));
  const numbers = FATES.map(() => make("b", ""));
  const [most, reached] = [span(), make("div", "ex-note sx-reach")];

  function redraw() {
    const [of, { borders, reach }] = [table.groups[state.group], table.formats[state.number_format]];
    const [casts, chosen] = [of.casts[state.number_format], places.indexOf(state.power)];
    const counts = casts[chosen];
    const top = Math.ceil(Math.log10(Math.max(...of.counts)));
    setText(status, verdict(counts, powers[chosen]));
    counts.forEach((count, i) => { numbers[i].textContent = percent(count, sum(counts)); });
    most.textContent = inFull(10 ** top);
    reached.textContent = reach;
    const shapes = histogramShapes(of, borders, state.power, ends, top + FOOT);
    chart.draw(ends[1] - ends[0], top + FOOT, shapes, `Histogram by size. ${status.textContent}`);
    overview.draw(casts.length, 1, overviewShapes(casts, chosen), overviewWords(casts, powers));
  }

  const keys = WORDS.map((words, i) => make("span", `ex-key sx-${FATES[i]}`, {}, [span("", words), numbers[i]]));
  const title = [make("b", "", { textContent: "Every scale at once" }), span("", " (click one)")];
  const nodes = [
    make("div", "ex-controls sx-controls", {}, Object.values(controls).map(({ node }) => node)), status,
    make("div", "sx-stage", {}, [
      makeAxis("ex-y", most, "numbers", "1"), chart.svg, makeAxis("ex-x", ...table.ticks.map(([, each]) => each)),
      makeAxis("ex-x sx-middle", "size of a scaled gradient →"),
    ]),
    make("div", "ex-legend sx-legend", {}, keys), reached,
    make("div", "sx-all", {}, [
      make("div", "sx-title", {}, title), overview.svg,
      makeAxis("", powers[0], "loss scale →", powers.at(-1)),
    ]),
  ];
  return { nodes, redraw };
}

export default explorer("scale", build);
