"""The film's numbers, its limits and its picture, all without a browser."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import traitlets

from course_kit.notebook import picture as style
from course_kit.units import Bytes
from course_lib.predict.chain import Chain, Moment
from course_pages.lesson03.explorer import FilmExplorer, film_table
from course_pages.lesson03.pictures import chain_film


def test_the_explorer_shows_a_chain_of_the_library():
    explorer = FilmExplorer(layers=12, every=3, ratio=2)
    assert explorer.chain == Chain(12, boundary_bytes=1, saved_bytes=2)
    explorer.ratio = 5
    assert explorer.chain.peak(explorer.every) == 4 + 3 * 5


def test_state_travels_as_plain_numbers():
    explorer = FilmExplorer()
    assert {name: explorer.get_state()[name] for name in ("layers", "every", "ratio")} == {
        "layers": 16, "every": 4, "ratio": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("layers", "ratio"), [(2, 1), (7, 3), (16, 1), (31, 2), (32, 20)])
def test_a_shorter_chains_film_is_the_longest_ones_without_its_last_layers(layers: int, ratio: int):
    table = film_table()
    for every in range(layers + 1):
        frames, end = Chain(layers, 1, ratio).film(every or None), 0
        rows = [row for row in table["films"][every] if row[1] < layers]
        for (number, layer, boundaries, inside), frame in zip(rows, frames, strict=True):
            phase, duration = table["phases"][number]
            expected = Moment(phase, layer, boundaries, inside, Bytes(boundaries + inside * ratio), end, duration)
            assert frame == expected
            end += duration


@pytest.mark.parametrize(
    ("wrong", "offered"),
    [({"layers": 1}, "2 to 32"), ({"layers": 33}, "2 to 32"), ({"every": -1}, "0 to 16"), ({"every": 17}, "0 to 16"),
     ({"ratio": 0}, "1 to 20")],
)  # fmt: skip
def test_numbers_outside_of_the_sliders_are_refused(wrong, offered):
    with pytest.raises(ValueError, match=f"choose one of {offered}"):
        FilmExplorer(**wrong)


def test_a_wrong_number_later_is_refused_too():
    with pytest.raises(traitlets.TraitError, match="ratio"):
        FilmExplorer().ratio = 21


@pytest.mark.parametrize(("every", "words"), [(4, "one input every 4 layers"), (0, "Keeping everything")])
def test_show_sends_the_widget_with_its_picture(monkeypatch: pytest.MonkeyPatch, every: int, words: str):
    sent: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: sent.append(SimpleNamespace(data=data, **rest)))
    explorer = FilmExplorer(every=every)
    explorer.show()
    assert sent[0].data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert sent[0].data["image/png"]
    assert words in sent[0].metadata["image/png"]["alt"]
    assert "computed again, used, and forgotten" in sent[1].data["text/html"]


def test_the_picture_is_the_same_every_time():
    chain = FilmExplorer().chain
    first, second = (chain_film(chain, 4, caption="c", alt="a").png for _ in range(2))
    assert first == second
