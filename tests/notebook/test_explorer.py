"""The base of all explorers: controls, limits, values in words, and a subclass elsewhere."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
import traitlets

from course_kit.notebook.explorer import Control, Explorer, listed
from tests.pages.explorers import EXPLORERS

READS = ("course_kit/notebook/*", "course_pages/lesson*/*")


def test_the_scripts_stand_in_the_order_in_which_they_are_needed() -> None:
    text = EXPLORERS["BitExplorer"].text("js")
    assert text.index("export function encode") < text.index("export function parseNumber") < text.index("makeBit")


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
    film = type("MyFilm", (EXPLORERS["FilmExplorer"],), {"__module__": "__main__", "caption": "mine"})
    assert film.text("js") == EXPLORERS["FilmExplorer"].text("js")
    assert list(film.controls()) == ["every", "layers", "ratio"]


def test_values_in_words() -> None:
    assert [listed(each) for each in (range(-8, 41), (1, 2, 4), ["a"], [])] == ["-8 to 40", "1, 2, 4", "a", ""]
