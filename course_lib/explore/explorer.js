// What all explorers share: controls, charts, legends, and the way to Python and back. The script of each stands below
// this text, in the same module.

const SVG = "http://www.w3.org/2000/svg";

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function make(tag, className, properties = {}, children = []) {
  const node = Object.assign(document.createElement(tag), { className, ...properties });
  // JupyterLab matches its shortcuts ("d d" deletes the cell) from the focused element upwards: stop it right there.
  if (["button", "input", "select"].includes(tag)) node.dataset.lmSuppressShortcuts = "true";
  node.append(...children);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text; // or screen readers read a status again
}

function makeStatus(className = "") {
  const node = make("div", `ex-status ${className}`);
  node.setAttribute("role", "status");
  return node;
}

function makeField(name, control, ...beside) {
  control.setAttribute("aria-label", name);
  return make("label", "ex-field", {}, [make("span", "", { textContent: name }), ...beside, control]);
}

// A slider over whole numbers. `describe(value, max)` says what one stands for; `set` may move the end.
function makeSlider(name, [min, max], describe, onInput) {
  const input = make("input", "", { type: "range", min, max, step: 1 });
  const output = make("b", "");
  input.addEventListener("input", () => onInput(Number(input.value)));
  const set = (value, top = max) => {
    input.max = top;
    input.value = value;
    output.textContent = describe(value, top);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  return { node: makeField(name, input, output), set };
}

// A list of choices, [value, words] each.
function makeSelect(name, choices, onChange) {
  const options = choices.map(([value, textContent]) => make("option", "", { value, textContent }));
  const select = make("select", "", {}, options);
  select.addEventListener("change", () => onChange(choices[select.selectedIndex][0]));
  return { node: makeField(name, select), set: (value) => { select.value = value; } };
}

// A drawing that stretches with the page; its words stand beside it, in HTML, and keep their size. Each area and each
// line is one path, of class `${prefix}-${its name}`; areas take their colour from --ex-color.
function makeChart(prefix, name, areas, lines = []) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `ex-chart ${prefix}-${name}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
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
    svg.setAttribute("aria-label", words);
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
  const nodes = marks.map((mark) => (mark instanceof Node ? mark : make("span", "", { textContent: mark })));
  return make("div", `ex-axis ${className}`, {}, nodes);
}

// words: name of an area or line → what it means.
function makeLegend(prefix, words) {
  const keys = Object.entries(words).map(([name, textContent]) => make("span", `ex-key ${prefix}-${name}`, { textContent }));
  return make("div", "ex-legend", { ariaHidden: "true" }, keys);
}

// The traits `names` as a plain object, `state`. Controls call `change({ name: value })`; `redraw` draws the state, and
// may correct it before. `begin` draws for the first time and listens to Python; it returns the function that ends this.
function follow(model, names, redraw) {
  const state = {};
  let sending = false;
  const onModel = () => {
    if (sending) return;
    for (const name of names) state[name] = model.get(name);
    redraw();
  };
  const change = (changes) => {
    Object.assign(state, changes);
    redraw();
    sending = true; // each set comes back as a change, when the next one is not yet made
    for (const name of names) if (model.get(name) !== state[name]) model.set(name, state[name]);
    sending = false;
    model.save_changes();
  };
  const begin = () => {
    onModel();
    for (const name of names) model.on(`change:${name}`, onModel);
    return () => names.forEach((name) => model.off(`change:${name}`, onModel));
  };
  return { state, change, begin };
}

function fill(el, className, children) {
  el.classList.add("explorer", className);
  el.replaceChildren(make("div", "ex-body", {}, children));
}
