"""What every explorer keeps to without a browser: its texts, its size, its controls and limits, its picture and words.

A new explorer needs one row of `TOLD` here, nothing else. What only one of them does has a file of its own.
"""

from __future__ import annotations

import html
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import traitlets

from course_kit.notebook import explorer as base
from course_kit.notebook import picture as style
from course_kit.notebook.explorer import listed
from course_lib.numerics.formats import FP8_E4M3FN, FP16
from tests.pages.explorers import EXPLORERS, NEEDED, make, words_of

READS = ("tests/pages/lesson*/test_explorer.py",)
HERE = Path(base.__file__).parent
PAGES = Path(__file__).parents[2] / "course_pages"
SHARED = {kind: (HERE / f"explorer.{kind}").read_text("utf-8") for kind in ("js", "css")}
LIMITED = [
    (name, control) for name, kind in EXPLORERS.items() for control, each in kind.controls().items() if each.limit
]
MOST_BYTES = {"CubeExplorer": 40_000, "ExpertsExplorer": 15_000, "RestartExplorer": 8_000, "MapExplorer": 100_000,
              "PipelineExplorer": 110_000}  # fmt: skip
"""Of a table, where it is not 60,000."""
TOLD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("BitExplorer", {"value": 65520, "formats": (FP16, FP8_E4M3FN)}, ("fp16 holds inf; fp8_e4m3fn holds 448",)),
    ("MemoryBarExplorer", {"batch": 1}, (
        "48 layers, 1600 wide", "optimizer 17.4 GiB", "at the peak (backward). It fits on: V100 32GB",
    )),
    ("MemoryBarExplorer", {"layers": 96, "width": 12288}, ("It fits on: none of the cards",)),
    ("FilmExplorer", {"every": 4}, ("one input every 4 layers",)),
    ("FilmExplorer", {"every": 0}, ("Keeping everything",)),
    ("ScaleExplorer", {"gradients": {"x": [torch.tensor([2.0**-30, 2.0**-20, 1.0, 2.0**20])]}}, (
        "x, scale 2^0: 25.0 % becomes 0, 25.0 % subnormal, 25.0 % normal, 25.0 % inf",
    )),
    ("AccumulationExplorer", {"global_batch": 4, "micro_batch": 2}, (
        "a step of 4 sequences, cut into pieces. 4 × 1: 3.6 GiB",
    )),
    ("RingExplorer", {"world_size": 4}, ("7 grids with 4 ranks",)),
    ("BucketExplorer", {}, ("GPT-2 XL on 8 ranks, buckets of 32 MiB",)),
    ("MatmulExplorer", {}, ("A cut by columns; H cut by columns; B cut by rows",)),
    ("PipelineExplorer", {"schedule": "interleaved"}, (  # Korthikanti et al. 2022: p(1 + (p-1)/(pv)) on rank 0
        "done after 28.5 units of time, 16% of all time", "from rank 0 on: 5.5, 4.5, 3.5, 2.5",
    )),
    ("ZeroExplorer", {"model": "Llama 3 405B", "ranks": 64, "gpu": "H100 SXM 80GB"}, (
        "Stage 2: and gradients: 838.6 GiB, does not fit, never; sends 1,598.0 GB in 3.6 s.",
        " GiB, does not fit, 102 ranks are enough; sends 2,397.1 GB",
    )),
    ("ZeroExplorer", {"model": "GPT-2 XL", "gpu": "T4", "ranks": 2, "sequences": 2}, (  # sold with 16 GiB
        "Stage 1: state cut: 15.9 GiB, does not fit",
    )),
    ("TiersExplorer", {"model": "GPT-NeoX-20B", "gradients": "main memory"}, (
        "In GPU 47.0 GiB of 39.5 GiB, too much; main memory 268.0 GiB of 512.0 GiB; disk 0.0 GiB",
        "A step: card 7.71 s, link 2.57 s, processor 3.21 s, disk 0.00 s; the card computes 57% of the time.",
    )),
    ("TiersExplorer", {"model": "GPT-3 6.7B", "sequences": 32, "gradients": "main memory"}, (
        "In GPU 65.2 GiB of 39.5 GiB, too much",  # 28.4 GiB without what passes
    )),
    ("TiersExplorer", {  # sold with 32 GiB
        "model": "GPT-2 XL", "gpu": "V100 32GB", "sequences": 16, "gradients": "main memory", "optimizer": "GPU",
    }, ("In GPU 31.9 GiB of 31.7 GiB, too much",)),
    ("CubeExplorer", {"rank": 5}, (
        "16 ranks, 4 in a machine. Rank 5 computes for ", "and talks along pipeline with 13 (over the network, ",
        "along data with 1 (over the network, ", "along tensor with 4, 6, 7 (inside its machine, ",
    )),
    ("ExpertsExplorer", {}, (
        "32 tokens, 8 experts, 2 a token, 10 places each, 26 of them empty. Queues of 9, 18, 12, 9, 6, 4",
        "10 of 64 choices are dropped; tokens without any expert: none. Against a dense layer 8.0 times the",
    )),
    ("ExpertsExplorer", {"capacity_factor": None}, ("2 a token, no limit. Queues of 9, 18",)),
    ("BowlExplorer", {"fit": "Chinchilla, 240 runs", "times": 96_000}, (
        "Chinchilla, 240 runs, 5.76e+23 FLOPs", "17.9 tokens a parameter",
    )),
    ("BowlExplorer", {"fit": "Chinchilla, all 245", "times": 96_000}, ("6.8 tokens a parameter",)),
    ("RestartExplorer", {}, ("2 ranks make 2 steps, then 4 go on. Read by nobody: 16; read twice: 0.",)),
    ("TilesExplorer", {}, ("16 tiles, 6 of them skipped",)),
    ("MapExplorer", {}, ("10 legal cells, 6 fit; the fastest is tensor 4, 1 stage with 20.2 s",)),
    ("MapExplorer", {"run": "80B on 64", "micro": 8}, ("none of which fits",)),
]  # fmt: skip
"""Explorers, what they are given, and what their words must hold."""


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_widget_carries_the_shared_text_and_its_own(name: str) -> None:
    explorer = EXPLORERS[name]
    own = Path(inspect.getfile(explorer))
    for kind in ("js", "css"):
        assert explorer.text(kind).startswith(SHARED[kind])
        assert explorer.text(kind).endswith(own.with_suffix(f".{kind}").read_text("utf-8"))
    needs_another_file = re.compile(r"^import |\burl\(|@import", re.M)
    assert not needs_another_file.search(explorer.text("js") + explorer.text("css"))


def test_every_script_and_sheet_has_a_widget_and_is_short() -> None:
    texts = "".join(explorer.text(kind) for explorer in EXPLORERS.values() for kind in ("js", "css"))
    assert len(EXPLORERS) == len([*PAGES.glob("lesson*/explorer.py")]) >= 17 and set(NEEDED) <= set(EXPLORERS)
    paths = [*HERE.glob("explorer.*s"), *PAGES.glob("*/*.*s")]
    files = {"/".join(path.parts[-2:]): path.read_text("utf-8") for path in paths}
    assert [name for name, text in files.items() if text not in texts] == []
    assert [name for name, text in files.items() if text.count("\n") > 150 and name != "notebook/explorer.js"] == []


@pytest.mark.parametrize("name", EXPLORERS)
def test_what_a_notebook_stores_is_small_and_made_once(name: str) -> None:
    """Script, sheet and table stand in every notebook that shows the explorer."""
    made = make(name)
    state = made.get_state()
    sizes = {key: len(json.dumps(state[key])) for key in ("table", "_controls", "_esm", "_css")}
    assert sum(sizes.values()) < 150_000, sizes
    assert len(made.table) < MOST_BYTES.get(name, 60_000)
    assert state["_esm"] == made.text("js") and state["_css"] == made.text("css")
    is_given_its_data = name in NEEDED or not made.controls()
    assert is_given_its_data or made._table() is make(name)._table()


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_value_of_a_control_has_words(name: str) -> None:
    made = make(name)
    for control, told in json.loads(made._controls).items():
        assert len(told["values"]) == len(told["words"]) > 1, control
        assert all(told["words"]) and getattr(made, control) in told["values"]
        assert made.get_state()[control] == getattr(made, control), "travels as it is"


@pytest.mark.parametrize("name", EXPLORERS)
def test_what_is_not_offered_is_refused_at_the_beginning_and_later(name: str) -> None:
    made = make(name)
    for control, values in made.offers.items():
        some = next(each for each in reversed(values) if each is not None)
        for wrong in ("nothing",) if isinstance(some, str) else (min(values[0], 0) - 1, some + 1.5):
            limit = made.controls()[control].limit
            most = limit[1](getattr(made, limit[0])) if limit else None
            offered = [each for each in values if most is None or each <= most]
            with pytest.raises(ValueError, match=re.escape(f"{control}={wrong!r}: choose one of {listed(offered)}")):
                make(name, **{control: wrong})
            with pytest.raises(traitlets.TraitError, match=re.escape(f"{control}={wrong!r}: choose one of")):
                setattr(made, control, wrong)
    assert made.chosen == make(name).chosen


@pytest.mark.parametrize(("name", "control"), LIMITED)
def test_a_limit_holds_at_the_beginning_and_later(name: str, control: str) -> None:
    by, most_of = make(name).controls()[control].limit
    offers = make(name).offers
    for value in offers[by]:
        inside = [each for each in offers[control] if each <= most_of(value)]
        made = make(name, **{by: max(offers[by])})
        setattr(made, control, offers[control][-1])
        setattr(made, by, value)
        assert getattr(made, control) == max(inside)
        assert make(name, **{by: value, control: inside[-1]}).chosen[control] == inside[-1]
        for beyond in offers[control][len(inside) : len(inside) + 1]:
            with pytest.raises(ValueError, match=re.escape(f"{control}={beyond!r}: choose one of {listed(inside)}")):
                make(name, **{by: value, control: beyond})


@pytest.mark.parametrize("name", EXPLORERS)
def test_show_sends_the_widget_with_its_picture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture comes again to the byte, and the words and the caption stand below it."""
    sent: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: sent.append(SimpleNamespace(data=data, **rest)))
    made = make(name)
    made.show()
    made.show()
    picture, caption, again, _ = sent
    assert picture.data["application/vnd.jupyter.widget-view+json"]["model_id"] == made.model_id
    assert picture.data["image/png"] == again.data["image/png"] != ""
    assert picture.metadata["image/png"]["alt"] == words_of(made) != ""
    shown = caption.data["text/html"]
    assert html.escape(made.caption, quote=False) in shown and html.escape(words_of(made), quote=False) in shown


@pytest.mark.parametrize(("name", "given", "words"), TOLD)
def test_its_words_hold_the_numbers_that_matter(name: str, given: dict[str, Any], words: tuple[str, ...]) -> None:
    told = words_of(EXPLORERS[name](**given))
    assert [each for each in words if each not in told] == [], told


def test_every_explorers_words_are_looked_at() -> None:
    told = {name for name, *_ in TOLD}
    own = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("lesson*/test_explorer.py"))
    silent = [name for name in EXPLORERS if name not in told and not re.search(rf"\b{name}\(.*\)\s+.*_told\(\)", own)]
    assert not silent, "a row of TOLD, or a test of its own, says what its words must hold"
