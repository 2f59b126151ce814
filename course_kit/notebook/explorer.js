// What all explorers share: controls, charts, legends, and the way to Python and back. The script of each stands below
// this text, in the same module, and ends with `export default explorer(name, build)`.

const SVG = "http://www.w3.org/2000/svg";

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const inFull = (n) => n.toLocaleString("en");
const fixed = (n, digits) => n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const inPercent = (share) => `${Math.round(100 * share)} %`;
const GIB = 2 ** 30;
const gib = (nbytes, digits = 1) => `${fixed(nbytes / GIB, digits)} GiB`;

function make(tag, className, properties = {}, children = []) {
  const node = Object.assign(document.createElement(tag), { className, ...properties });
  // JupyterLab matches its shortcuts ("d d" deletes the cell) from the focused element upwards: stop it right there.
  if (["button", "input", "select"].includes(tag)) node.dataset.lmSuppressShortcuts = "true";
  node.append(...children);
  return node;
}

const span = (className = "", textContent = "") => make("span", className, { textContent });

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text; // or screen readers read a status again
}

function label(node, words, role) {
  node.setAttribute("aria-label", words);
  if (role) node.setAttribute("role", role);
  return node;
}

function makeStatus(className = "") {
  const node = make("div", `ex-status ${className}`);
  node.setAttribute("role", "status");
  return node;
}

function makeButton(textContent, words, onclick, className = "ex-button") {
  const node = make("button", className, { type: "button", textContent, onclick });
  return words ? label(node, words) : node;
}

// Controls, as Python describes them: a label, all values, and what the page says for each (or a function of the value
// and the last one). `set(value, most)` moves one, and its end.
const KINDS = {
  slider({ label: name, values, words }, onValue) {
    const first = values.every((value, i) => value === values[0] + i) ? values[0] : 0;
    const input = label(make("input", "", { type: "range", min: first, max: first + values.length - 1, step: 1 }), name);
    const output = make("b", "");
    input.addEventListener("input", () => onValue(values[input.value - first]));
    const set = (value, most = values.at(-1)) => {
      const place = values.indexOf(value);
      input.max = first + values.indexOf(most);
      input.value = first + place;
      output.textContent = words instanceof Function ? words(value, most) : words[place];
      input.setAttribute("aria-valuetext", output.textContent);
    };
    return { node: make("label", "ex-field", {}, [span("", name), output, input]), input, set };
  },
  choice({ label: name, values, words }, onValue) {
    const options = values.map((value, i) => make("option", "", { value, textContent: words[i] }));
    const input = label(make("select", "", {}, options), name);
    input.addEventListener("change", () => onValue(values[input.selectedIndex]));
    const set = (value) => { input.selectedIndex = values.indexOf(value); };
    return { node: make("label", "ex-field", {}, [span("", name), input]), input, set };
  },
  switch({ label: name }, onValue) {
    const input = make("input", "", { type: "checkbox", onchange: () => onValue(input.checked) });
    return { node: make("label", "ex-check", {}, [input, span("", name)]), input, set: (value) => { input.checked = value; } };
  },
};

// A drawing that stretches with the page; its words stand beside it, in HTML, and keep their size. Each area and each
// line is one path, of class `${prefix}-${its name}`; areas take their colour from --ex-color.
function makeChart(prefix, name, areas, lines = []) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `ex-chart ${prefix}-${name}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const paths = Object.fromEntries([...areas, ...lines].map((part) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", `${lines.includes(part) ? "ex-stroke" : "ex-fill"} ${prefix}-${part}`);
    svg.append(path);
    return [part, path];
  }));
  let columns = 1;
  const draw = (width, height, shapes, words) => {
    columns = width;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    label(svg, words, "img");
    for (const [part, d] of Object.entries(shapes)) paths[part].setAttribute("d", d);
  };
  // For a chart whose columns are 1 wide: `act` learns which one was clicked.
  const onColumn = (act) => {
    svg.classList.add("ex-columns");
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
      act(Math.max(0, Math.min(columns - 1, column)));
    });
  };
  return { svg, paths, draw, onColumn };
}

const rect = (x, y, width, height) => (width > 0 ? `M${x} ${y}h${width}v${height}h${-width}z` : "");

// The words along a chart's edge, spread evenly: texts, or nodes whose text changes. "ex-x" is below it, "ex-y" left.
function makeAxis(className, ...marks) {
  return make("div", `ex-axis ${className}`, {}, marks.map((mark) => (mark instanceof Node ? mark : span("", mark))));
}

// words: name of an area or line → what it means.
function makeLegend(prefix, words) {
  const keys = Object.entries(words).map(([name, text]) => span(`ex-key ${prefix}-${name}`, text));
  return make("div", "ex-legend", { ariaHidden: "true" }, keys);
}

function makeKey(words, color) {
  const key = span("ex-key", words);
  key.style.setProperty("--ex-color", color);
  return key;
}

// Bytes side by side against a limit: a block of each colour on a track, whose dashed line stands at the sheet's --ex-limit,
// and in words whether they fit. `draw(sizes, limit, full, words)`: on a track of `full` bytes; longer ones fade out.
function makeStack(colors) {
  const blocks = colors.map((background) => {
    const block = make("div", "ex-block");
    block.style.background = background;
    return block;
  });
  const [stack, total] = [make("div", "ex-stack", {}, blocks), span("ex-total")];
  const draw = (sizes, limit, full, words) => {
    const together = sum(sizes);
    sizes.forEach((nbytes, i) => { blocks[i].style.width = `${(100 * nbytes) / full}%`; });
    stack.classList.toggle("ex-longer", together > full);
    total.textContent = together ? `${gib(together)}, ${together <= limit ? "fits" : "too much"}` : "empty";
    total.classList.toggle("ex-fits", together > 0 && together <= limit);
    label(stack, words, "img");
  };
  return { track: make("div", "ex-track", {}, [stack]), total, draw };
}

// "weights 12.4 GiB, gradients 1.6 GiB", without those that have none.
function namedBytes(names, sizes) {
  return names.map((name, i) => `${name} ${gib(sizes[i])}`).filter((_, i) => sizes[i]).join(", ");
}

// Arrow keys walk over rows of buttons: up and down to what stands there on the screen. A grid is one stop for Tab and goes
// around at its ends; of other rows each is a stop.
function walk(root, rows, isGrid = false) {
  const inside = (i, n) => (isGrid ? (i + n) % n : Math.max(0, Math.min(n - 1, i)));
  const distance = (a, b) => Math.abs(a.getBoundingClientRect().left - b.getBoundingClientRect().left);
  rows.forEach((row, r) => row.forEach((node, i) => { node.tabIndex = i || (isGrid && r) ? -1 : 0; }));
  root.addEventListener("keydown", (event) => {
    const { key, target } = event;
    const r = rows.findIndex((each) => each.includes(target));
    const i = rows[r]?.indexOf(target);
    const beside = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: rows[r]?.length - 1 }[key];
    const other = { ArrowUp: r - 1, ArrowDown: r + 1 }[key];
    if (r < 0 || (beside ?? other) === undefined) return;
    const row = rows[inside(other ?? r, rows.length)];
    const nearest = (a, b) => (distance(b, target) < distance(a, target) ? b : a);
    const to = other === undefined ? row[inside(beside, row.length)] : row.reduce(nearest);
    for (const node of isGrid ? rows.flat() : row) node.tabIndex = node === to ? 0 : -1;
    to.focus();
    event.preventDefault();
  });
}

// `build` gets Python's `table`, the `state` (what is chosen, by name), the `controls` for it, what they `offer`, and
// `change({ name: value })`. It returns the explorer's `nodes`, `redraw`, which draws the state, and perhaps `end`.
// `others` are traits that belong to the state and have no control.
function explorer(name, build, others = []) {
  return { render({ model, el }) {
    const offers = JSON.parse(model.get("_controls"));
    const names = [...Object.keys(offers), ...others];
    const state = {};
    let sending = false;
    const redraw = () => {
      for (const [control, { limit }] of Object.entries(offers)) {
        const most = limit?.most[offers[limit.by].values.indexOf(state[limit.by])];
        if (limit) state[control] = Math.min(state[control], most);
        controls[control].set(state[control], most);
      }
      built.redraw();
    };
    const onModel = () => {
      if (sending) return;
      for (const each of names) state[each] = model.get(each);
      redraw();
    };
    const change = (changes) => {
      Object.assign(state, changes);
      redraw();
      sending = true; // each set comes back as a change, when the next one is not yet made
      for (const each of names) if (model.get(each) !== state[each]) model.set(each, state[each]);
      sending = false;
      model.save_changes();
    };
    const controls = Object.fromEntries(Object.entries(offers).map(([each, offer]) =>
      [each, KINDS[offer.kind](offer, (value) => change({ [each]: value }))]));
    const built = build({ table: JSON.parse(model.get("table")), state, change, controls, offers });
    el.classList.add("explorer", `${name}-explorer`);
    el.replaceChildren(make("div", "ex-body", {}, built.nodes));
    onModel();
    for (const each of names) model.on(`change:${each}`, onModel);
    return () => {
      names.forEach((each) => model.off(`change:${each}`, onModel));
      built.end?.();
    };
  } };
}
