// Explorers without a kernel, and boxes that the keyboard can scroll. The page's own script has set `courseWidgets`.

// What a widget's script asks of its model: traits that can be read, set and listened to. Nobody else listens here.
function modelOf(state) {
  const listeners = new Map();
  return {
    get: (name) => state[name],
    set(name, value) {
      if (state[name] === value) return;
      state[name] = value;
      for (const listener of listeners.get(`change:${name}`) ?? []) listener();
    },
    on: (event, listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
    off: (event, listener) => listeners.set(event, (listeners.get(event) ?? []).filter((each) => each !== listener)),
    save_changes() {},
  };
}

const { texts = [], models = {} } = window.courseWidgets ?? {};
const modules = new Map(); // several widgets have one script
const styled = new Set();

async function show(node) {
  const { _esm, _css, ...state } = models[node.dataset.model];
  if (!modules.has(_esm)) modules.set(_esm, import(URL.createObjectURL(new Blob([texts[_esm]], { type: "text/javascript" }))));
  if (!styled.has(_css)) {
    styled.add(_css);
    document.head.append(Object.assign(document.createElement("style"), { textContent: texts[_css] }));
  }
  const { default: widget } = await modules.get(_esm);
  const el = document.createElement("div");
  node.replaceChildren(el);
  widget.render({ model: modelOf(state), el });
}

// What is wider than the page scrolls inside itself: then the keyboard must reach it, and it has a name.
const NAMES = [["pre", "Code"], [".math-block", "Formula"], [".pst-scrollable-table-container, .output div[style*='overflow']", "Table"]];

function markScrollable() {
  for (const [kind, name] of NAMES) {
    for (const node of document.querySelectorAll(kind)) {
      const scrolls = node.scrollWidth > node.clientWidth;
      if (scrolls) Object.assign(node, { tabIndex: 0, role: "group", ariaLabel: `${name}, wider than the page` });
      else for (const each of ["tabindex", "role", "aria-label"]) node.removeAttribute(each);
    }
  }
}

// Paper is white and nothing on it opens: a solution is printed; a figure's words are not, for the figure stands there.
let onScreen = null;

function toPaper() {
  const root = document.documentElement;
  const folded = [...document.querySelectorAll("article details:not([open], :has(> summary > small))")];
  onScreen = { theme: root.dataset.theme, folded };
  root.dataset.theme = "light";
  for (const each of folded) each.open = true;
}

function toScreen() {
  if (!onScreen) return;
  document.documentElement.dataset.theme = onScreen.theme;
  for (const each of onScreen.folded) each.open = false;
  onScreen = null;
}

addEventListener("beforeprint", toPaper);
addEventListener("afterprint", toScreen);

Promise.all([...document.querySelectorAll(".course-widget")].map(show)).then(() => {
  markScrollable();
  new ResizeObserver(markScrollable).observe(document.body);
  document.documentElement.dataset.courseReady = "true";
});
