"""What all explorers share: texts for the browser, controls, limits, tables of a bearable size."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import traitlets

from course_kit.notebook import explorer as base
from course_kit.notebook.explorer import Control, Explorer, listed
from tests.pages.explorers import EXPLORERS as BY_NAME

HERE = Path(base.__file__).parent
PAGES = Path(__file__).parents[2] / "course_pages"
SHARED = {kind: (HERE / f"explorer.{kind}").read_text("utf-8") for kind in ("js", "css")}
EXPLORERS: list[Any] = list(BY_NAME.values())
NEEDED = {"ScaleExplorer": [{"weights": [torch.arange(1.0, 100)], "inputs": [torch.arange(1.0, 9)]}]}


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda each: each.__name__)
def test_a_widget_carries_the_shared_text_and_its_own(explorer: Any) -> None:
    own = Path(inspect.getfile(explorer))
    for kind in ("js", "css"):
        assert explorer.text(kind).startswith(SHARED[kind])
        assert explorer.text(kind).endswith(own.with_suffix(f".{kind}").read_text("utf-8"))
    needs_another_file = re.compile(r"^import |\burl\(|@import", re.M)
    assert not needs_another_file.search(explorer.text("js") + explorer.text("css"))


def test_every_script_and_sheet_has_a_widget_and_is_short() -> None:
    texts = "".join(explorer.text(kind) for explorer in EXPLORERS for kind in ("js", "css"))
    assert len(EXPLORERS) == 17
    paths = [*HERE.glob("explorer.*s"), *PAGES.glob("*/*.*s")]
    files = {"/".join(path.parts[-2:]): path.read_text("utf-8") for path in paths}
    assert [name for name, text in files.items() if text not in texts] == []
    assert [name for name, text in files.items() if text.count("\n") > 150 and name != "notebook/explorer.js"] == []


def test_the_scripts_stand_in_the_order_in_which_they_are_needed() -> None:
    text = BY_NAME["BitExplorer"].text("js")
    assert text.index("export function encode") < text.index("export function parseNumber") < text.index("makeBit")


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda each: each.__name__)
def test_what_a_notebook_stores_is_small(explorer: Any) -> None:
    """Script, sheet and table stand in every notebook that shows the explorer."""
    state = explorer(*NEEDED.get(explorer.__name__, ())).get_state()
    sizes = {name: len(json.dumps(state[name])) for name in ("table", "_controls", "_esm", "_css")}
    assert sum(sizes.values()) < 150_000, sizes
    assert state["_esm"] == explorer.text("js") and state["_css"] == explorer.text("css")


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda each: each.__name__)
def test_every_value_of_a_control_has_words(explorer: Any) -> None:
    made = explorer(*NEEDED.get(explorer.__name__, ()))
    for name, told in json.loads(made._controls).items():
        assert len(told["values"]) == len(told["words"]) > 1, name
        assert all(told["words"]) and getattr(made, name) in told["values"]


class Pair(Explorer):
    """Two numbers, of which the second is at most twice the first."""

    small = Control("small", range(1, 5), 2)
    large = Control("large", range(1, 9), 4, limit=("small", lambda small: 2 * small))

    @classmethod
    def text(cls, kind: Literal["js", "css"]) -> str:
        return kind

    def _table(self) -> dict[str, Any]:
        return {}


def test_a_limit_holds_at_the_beginning_and_later() -> None:
    made = Pair(small=4, large=8)
    assert made.chosen == {"small": 4, "large": 8}
    made.small = 2
    assert made.chosen == {"small": 2, "large": 4}
    made.large = 6
    assert made.large == 4
    assert json.loads(made._controls)["large"]["limit"] == {"by": "small", "most": [2, 4, 6, 8]}
    assert Pair(small=1).large == 2  # a default moves along
    with pytest.raises(ValueError, match="large=5: choose one of 1, 2, 3, 4"):
        Pair(large=5)


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(ValueError, match="small=9: choose one of 1, 2, 3, 4"):
        Pair(small=9)
    with pytest.raises(traitlets.TraitError, match="large=0: choose one of 1 to 8"):
        Pair().large = 0
    with pytest.raises(TypeError, match="Pair has the controls small, large; given medium"):
        Pair(medium=1)


def test_a_subclass_elsewhere_keeps_the_script() -> None:
    film = type("MyFilm", (BY_NAME["FilmExplorer"],), {"__module__": "__main__", "caption": "mine"})
    assert film.text("js") == BY_NAME["FilmExplorer"].text("js")
    assert list(film.controls()) == ["every", "layers", "ratio"]


def test_values_in_words() -> None:
    assert [listed(each) for each in (range(-8, 41), (1, 2, 4), ["a"], [])] == ["-8 to 40", "1, 2, 4", "a", ""]
