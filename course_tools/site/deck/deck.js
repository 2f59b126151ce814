// Slides: one at a time, scaled to the window, each scaled to its room; notes below (n) or in a second window (s).
const WIDTH = 1280, HEIGHT = 720, LARGEST = { explorer: 1.45, figure: 1.6, table: 1.2, code: 1.3, turn: 1.2 };
const slides = [...document.querySelectorAll(".slide")];
const by = (id) => document.getElementById(id);
const started = Date.now();
let now = 0, below = null, speaker = null;

function kindOf(slide) { return Object.keys(LARGEST).find((kind) => slide.classList.contains(`is-${kind}`)); }

// A content that is too large for its room becomes smaller; what is drawn small becomes larger.
function fit(content) {
  const room = content.parentElement, box = [content.offsetWidth, content.offsetHeight];
  const wide = Math.max(box[0], content.scrollWidth);
  const scale = Math.min(LARGEST[kindOf(room.parentElement)] ?? 1, room.clientWidth / wide, room.clientHeight / box[1]);
  content.style.transform = `scale(${scale})`;
  content.style.margin = `${((scale - 1) * box[1]) / 2}px ${((scale - 1) * box[0]) / 2}px`;
}

function scaleToWindow() {
  const height = innerHeight - (below?.offsetHeight ?? 0);
  const scale = Math.min(innerWidth / WIDTH, height / HEIGHT);
  const left = (innerWidth - WIDTH * scale) / 2, top = (height - HEIGHT * scale) / 2;
  for (const slide of slides) slide.style.transform = `translate(${left}px, ${top}px) scale(${scale})`;
}

// What the class guessed two slides ago, beside the table that answers it.
function tellGuesses(slide) {
  for (const line of slide.querySelectorAll(".guessed")) {
    const boxes = line.dataset.from.split(" ").map((model) => document.querySelector(`[data-model="${model}"] input`));
    const said = boxes.filter((box) => box?.value.trim())
      .map((box) => `${box.value.trim()} ${box.parentElement.querySelector(".ask-unit").textContent}`.trim());
    line.textContent = said.length ? `Guessed: ${said.join("; ")}` : "";
  }
}

function notesOf(slide) { return slide?.querySelector(".notes").innerHTML ?? ""; }

function showNotes() {
  if (below) below.innerHTML = notesOf(slides[now]);
  if (!speaker || speaker.closed) return;
  const next = slides[now + 1];
  const minutes = Math.floor((Date.now() - started) / 60000);
  speaker.document.body.innerHTML = `<p><b>${now + 1} of ${slides.length}</b>, ${minutes} min</p>${notesOf(slides[now])}
    <hr><p>Next: ${next ? next.querySelector(".content").innerText.slice(0, 200).replace(/</g, "&lt;") : "the end"}</p>`;
}

function go(to) {
  now = Math.max(0, Math.min(slides.length - 1, to));
  slides.forEach((slide, number) => {
    slide.classList.toggle("now", number === now);
    slide.inert = number !== now;
  });
  tellGuesses(slides[now]);
  by("where").textContent = `${now + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${now + 1}`);
  showNotes();
}

function toggleBelow() {
  if (below) below.remove();
  below = below ? null : Object.assign(document.createElement("aside"), { id: "below", className: "notes", tabIndex: 0, ariaLabel: "Notes" });
  if (below) document.body.append(below);
  showNotes();
  scaleToWindow();
}

function openSpeaker() {
  speaker = window.open("", "notes", "width=760,height=820");
  if (!speaker) return;
  speaker.document.title = `Notes: ${document.title}`;
  const sheet = document.querySelector("style").cloneNode(true);
  speaker.document.head.replaceChildren(sheet);
  speaker.document.body.className = "notes";
  speaker.onkeydown = onKey;
  showNotes();
}

const ALWAYS = { PageDown: 1, PageUp: -1 }; // what a presenter's remote sends
const OUTSIDE = { ArrowRight: 1, ArrowLeft: -1, " ": 1, Home: -Infinity, End: Infinity };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const busy = event.target.closest?.(".course-widget, a, button, summary"); // its own keys come first
  const step = ALWAYS[event.key] ?? (busy ? undefined : OUTSIDE[event.key]);
  if (step !== undefined) { event.preventDefault(); go(now + step); }
  else if (!busy && event.key === "n") toggleBelow();
  else if (!busy && event.key === "s") openSpeaker();
}

document.documentElement.classList.add("live");
by("back").onclick = () => go(now - 1);
by("on").onclick = () => go(now + 1);
by("notes-here").onclick = toggleBelow;
by("notes-there").onclick = openSpeaker;
addEventListener("keydown", onKey, true); // before a box for a guess keeps the key to itself
addEventListener("resize", scaleToWindow);
addEventListener("hashchange", () => go(Number(location.hash.slice(1)) - 1 || 0));
setInterval(showNotes, 60000);
scaleToWindow();
go(Number(location.hash.slice(1)) - 1 || 0);
const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => fit(target)));
for (const slide of slides) watch.observe(slide.querySelector(".content"));
