// The predict box: one label, one text field, one line for what could not be read.
let boxes = 0;

function render({ model, el }) {
  const id = `ask-${++boxes}`;
  el.classList.add("ask");
  el.innerHTML = `<label for="${id}"></label>
    <span class="ask-field"><input id="${id}" type="text" inputmode="decimal" autocomplete="off"
      placeholder="your guess" aria-describedby="${id}-message"> <span class="ask-unit" aria-hidden="true"></span></span>
    <span id="${id}-message" class="ask-message" role="status"></span>`;
  const input = el.querySelector("input");
  const unit = model.get("unit");
  el.querySelector("label").textContent = model.get("question");
  el.querySelector(".ask-unit").textContent = unit;
  if (unit) input.setAttribute("aria-label", `${model.get("question")}, in ${unit}`);
  input.value = model.get("text");

  const send = () => { model.set("text", input.value); model.save_changes(); };
  input.addEventListener("change", send);
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();                       // the notebook's shortcuts must not take the digits
    if (event.key === "Enter" && !event.shiftKey) send();
  });
  const onText = () => { if (document.activeElement !== input) input.value = model.get("text"); };
  const onMessage = () => {
    const message = model.get("message");
    el.querySelector(".ask-message").textContent = message || (model.get("text").trim() ? "Noted." : "");
    el.classList.toggle("ask-unreadable", Boolean(message));
    input.setAttribute("aria-invalid", String(Boolean(message)));
  };
  model.on("change:text", onText);
  model.on("change:text", onMessage);
  model.on("change:message", onMessage);
  onMessage();
  return () => {
    model.off("change:text", onText);
    model.off("change:text", onMessage);
    model.off("change:message", onMessage);
  };
}

export default { render };
