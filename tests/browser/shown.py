"""One explorer among all those of one page: its fields, its model, its drawing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Locator, Page, ViewportSize

from tests.pages.explorers import make

SIZE: ViewportSize = {"width": 1000, "height": 900}
ALONE = """(name) => {
    for (const id of Object.keys(shown)) document.getElementById(id).hidden = id !== name;
    shown[name].reset();
}"""
SET = """([name, values, anew]) => {
    if (anew) shown[name].reset();
    Object.entries(values).forEach(([control, value]) => shown[name].set(control, value));
}"""
LOOK = """(root, controls) => {
    const model = shown[root.id], copy = root.cloneNode(true);
    const fields = Object.fromEntries([...root.querySelectorAll('input, select')].map((field) => [
        field.ariaLabel ?? field.parentElement.textContent, [field.value, field.checked, field.ariaValueText]]));
    copy.querySelectorAll('.ex-field, .ex-check, input').forEach((node) => node.remove());
    const values = Object.fromEntries(controls.map((each) => [each, model.get(each)]));
    return { values, saved: model.saved, fields, drawn: copy.innerHTML.replaceAll(' style=""', '') };
}"""


@dataclass(frozen=True)
class Look:
    """What there is at a moment.

    Attributes:
        values: the model's values, by control.
        saved: how many messages Python got.
        fields: value, check and words of each field, by its name.
        drawn: the page's text of everything but the fields.
    """

    values: dict[str, Any]
    saved: int
    fields: dict[str, list[Any]]
    drawn: str


@dataclass(frozen=True)
class Shown:
    """One explorer on the page of all, at its first place; the others are hidden.

    Attributes:
        root: its element.
        controls: Python's description of each control, by name.
    """

    name: str
    page: Page
    root: Locator
    controls: dict[str, Any]

    def look(self) -> Look:
        """What is shown and held now."""
        return Look(**self.root.evaluate(LOOK, list(self.controls)))

    def set(self, values: dict[str, Any], anew: bool = True) -> None:
        """Do what Python does when it sets traits; `anew`: with the other controls at their first places."""
        self.page.evaluate(SET, [self.name, values, anew])

    def field(self, control: str) -> Locator:
        """The field of a control, found as a screen reader finds it."""
        role = {"slider": "slider", "choice": "combobox", "switch": "checkbox"}[self.controls[control]["kind"]]
        return self.root.get_by_role(role, name=self.controls[control]["label"], exact=True)  # type: ignore[arg-type]

    def move(self, control: str, to_the_end: bool) -> None:
        """Move a field to its first or its last value as a reader does: by keyboard, list or click."""
        field, told = self.field(control), self.controls[control]
        if told["kind"] == "slider":
            field.press("End" if to_the_end else "Home")
        elif told["kind"] == "choice":
            field.select_option(index=len(told["values"]) - 1 if to_the_end else 0)
        else:
            field.set_checked(to_the_end)

    def last(self, control: str, values: dict[str, Any]) -> Any:
        """The largest value that a control may have beside these of the others."""
        told = self.controls[control]
        if limit := told["limit"]:
            return limit["most"][self.controls[limit["by"]]["values"].index(values[limit["by"]])]
        return told["values"][-1]


def alone_on_the_page(page: Page, name: str) -> Shown:
    """That explorer, at its first place; the others are hidden."""
    page.set_viewport_size(SIZE)
    page.evaluate(ALONE, name)
    return Shown(name, page, page.locator(f"#{name}"), json.loads(make(name)._controls))
