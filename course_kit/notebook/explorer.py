"""The base of all explorers: controls and their limits, the table that the browser draws, and `show`.

Python computes beforehand one table of all that an explorer shows, for all places of its controls. The script looks
values up in the table, adds and draws: the arithmetic of a lesson is written once, in Python. Script, sheet and table
are part of the widget's state, and so of a notebook that stores it: an explorer lives in a page without Python.

A new explorer is a subclass in `course_pages/lessonNN/explorer.py`, with `explorer.js` and `explorer.css` beside it,
with a `Control` for each thing to move, `_table` for the drawn values, and `_picture` and `_told` for places that run
no JavaScript. Where the table of all places would be large (100 KB is much), make it a sum of smaller ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import anywidget
import traitlets

from course_kit.notebook.picture import Picture

_SHARED = Path(__file__)


class Control(traitlets.TraitType):  # without its type arguments, which Colab's older traitlets does not know
    """A trait that readers move, and Python, too: `explorer.layers = 8`.

    Args:
        label: the control's name on the page.
        values: the values on offer, in order; empty if known only when an explorer is made (`offers` of `Explorer`).
        default: one of these values; the first if None.
        words: function from a value to its words on the page.
        kind: "slider", "choice" (a list), or "switch" between False and True.
        limit: the name of another control, and a function from its value to the largest one allowed here.
    """

    def __init__(
        self, label: str, values: Sequence[Any] = (), default: Any = None, words: Callable[[Any], str] = str,
        kind: Literal["slider", "choice", "switch"] = "slider", limit: tuple[str, Callable[[Any], Any]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(default)
        self.tag(sync=True)
        self.label, self.values, self.words, self.kind, self.limit = label, values, words, kind, limit

    def validate(self, obj: Explorer, value: Any) -> Any:
        """Refuse a value that is not offered; traitlets asks on every change."""
        offered = obj.offers[self.name or ""]
        if value not in offered:
            raise traitlets.TraitError(f"{self.name}={value!r}: choose one of {listed(offered)}")
        return value

    def most(self, chosen: Mapping[str, Any]) -> Any:
        """The largest value while the other controls stand where `chosen` says, for a control that has a limit."""
        assert self.limit
        return self.limit[1](chosen[self.limit[0]])


class Explorer(anywidget.AnyWidget):
    """An instrument to touch: controls, and a drawing that follows them, moved by a reader or by Python.

    Set `explorer.ranks = 8` and the drawing follows; move the slider and `explorer.ranks` follows.

    Args:
        offers: the values on offer, by name, for controls that offer others in each explorer.
        chosen: the controls' values, by name.

    Raises:
        ValueError: a value that its control does not offer (as `traitlets.TraitError` when it is set later).
        TypeError: there is no such control.
    """

    scripts: ClassVar[tuple[str, ...]] = ()
    """Further scripts that stand above the explorer's own."""
    caption: ClassVar[str]
    """Caption of a `show` without one."""
    _controls = traitlets.Unicode().tag(sync=True)
    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    table = traitlets.Unicode().tag(sync=True)

    def __init__(self, offers: Mapping[str, Sequence[Any]] | None = None, **chosen: Any) -> None:
        self.offers = {name: list(each.values) for name, each in self.controls().items()} | dict(offers or {})
        super().__init__(
            **self._checked(chosen), _esm=self.text("js"), _css=self.text("css"), table=_packed(self._table()),
            _controls=_packed({name: self._described(each) for name, each in self.controls().items()}),
        )  # fmt: skip
        self.observe(self._keep_limits, list(self.controls()))

    @classmethod
    def controls(cls) -> dict[str, Control]:
        """The controls by name, in their order on the page."""
        traits = {name: each for base in reversed(cls.__mro__) for name, each in vars(base).items()}
        return {name: each for name, each in traits.items() if isinstance(each, Control)}

    @classmethod
    def text(cls, kind: Literal["js", "css"]) -> str:
        """The script or the sheet, whole: the explorer's own below the text that all share."""
        modules = [sys.modules.get(base.__module__) for base in cls.__mro__]
        files = [Path(file) for module in modules if (file := getattr(module, "__file__", None))]
        own = next(file for file in files if file.with_suffix(".js").exists())  # a parent's, for a subclass in a cell
        further = [own.with_name(name) for name in (cls.scripts if kind == "js" else ())]
        return "\n".join(file.with_suffix(f".{kind}").read_text("utf-8") for file in (_SHARED, *further, own))

    @property
    def chosen(self) -> dict[str, Any]:
        """Values of the controls, by name."""
        return {name: getattr(self, name) for name in self.controls()}

    def show(self, caption: str = "", alt: str = "") -> None:
        """Display the explorer, with a picture of it for places that run no JavaScript.

        Args:
            caption: the point of the picture; the class's own `caption` if empty.
            alt: the picture in words; those of the chosen values if empty.
        """
        self._picture(caption=caption or self.caption, alt=alt or self._told()).show(widget=self)

    def _table(self) -> Mapping[str, Any]:
        """Numbers, lists and texts that the script draws."""
        raise NotImplementedError

    def _picture(self, *, caption: str, alt: str) -> Picture:
        """A still picture of the places of the controls."""
        raise NotImplementedError

    def _told(self) -> str:
        """The picture in words, with the numbers that matter."""
        raise NotImplementedError

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A value for every control: the given one, else the default."""
        controls = self.controls()
        if unknown := given.keys() - controls.keys():
            raise TypeError(f"{type(self).__name__} has the controls {', '.join(controls)}; given {', '.join(unknown)}")
        defaults = {name: each.default_value for name, each in controls.items()}
        defaults = {name: self.offers[name][0] if each is None else each for name, each in defaults.items()}
        chosen = {**defaults, **given}
        for name, control in sorted(controls.items(), key=lambda item: bool(item[1].limit)):  # limiting ones first
            most = control.most(chosen) if control.limit else None
            if most is not None and name not in given:
                chosen[name] = min(chosen[name], most)
            offered = [each for each in self.offers[name] if most is None or each <= most]
            if chosen[name] not in offered:
                raise ValueError(f"{name}={chosen[name]!r}: choose one of {listed(offered)}")
        return chosen

    def _described(self, control: Control) -> dict[str, Any]:
        """A control as `explorer.js` builds it."""
        values = self.offers[control.name or ""]
        limit = control.limit and {
            "by": control.limit[0], "most": [control.limit[1](each) for each in self.offers[control.limit[0]]]
        }  # fmt: skip
        words = [control.words(each) for each in values]
        return {"label": control.label, "kind": control.kind, "values": values, "words": words, "limit": limit}

    def _keep_limits(self, _change: object) -> None:
        for name, control in self.controls().items():
            if control.limit and getattr(self, name) > (most := control.most(self.chosen)):
                setattr(self, name, most)


def _packed(value: Any) -> str:
    """One line of JSON: spelled out, a notebook would give every number a line of its own."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def listed(values: Sequence[Any]) -> str:
    """Values in words: "0 to 16", or one after the other."""
    numbers = all(isinstance(value, int) for value in values)
    if numbers and len(values) > 6 and list(values) == list(range(values[0], values[0] + len(values))):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))
