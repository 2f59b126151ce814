"""What explorers say and draw at certain places, number by number; reached by hand or from Python, it is the same."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from course_pages.lesson14.explorer import TIMES, bowl
from tests.browser.shown import Shown, alone_on_the_page

pytestmark = pytest.mark.browser

STATUS = "[role=status]"
FORWARD = 'role=button[name="one tile forward"]'
CHINCHILLA = bowl("Chinchilla, 240 runs", TIMES[-1])["best"][2]
A100 = {"model": "GPT-3 6.7B", "ranks": 8, "gpu": "A100 40GB"}

PLACES: list[tuple[str, dict[str, Any], list[tuple[str, Any]]]] = [
    ("FilmExplorer", {"every": 5}, [(STATUS, "Keep an input every 5 layers: at most 8 inputs' worth held")]),
    ("FilmExplorer", {"every": 16}, [(STATUS, "at most 17 inputs' worth held (106 % of 16), 64 layer runs")]),
    ("FilmExplorer", {"every": 0}, [(STATUS, "Keep everything: at most 16 inputs' worth held (100 % of 16), 48")]),
    ("FilmExplorer", {"every": 2}, [(STATUS, "every 2 layers: at most 10")]),
    ("FilmExplorer", {"layers": 8, "every": 8}, [(".fx-lowest", ["lowest: 5, at K = 3"])]),
    ("FilmExplorer", {"ratio": 20}, [(".fx-lowest", ["lowest: 36, at K = 1"])]),
    ("ScaleExplorer", {"power": 1}, [(STATUS, "Scale 2¹:")]),
    ("ScaleExplorer", {"power": 12}, [(STATUS, "Scale 2¹²")]),
    ("ScaleExplorer", {"group": "few"}, [(STATUS, "9 of 9 become 0")]),
    ("ScaleExplorer", {"group": "few", "number_format": "bf16"}, [
        (STATUS, "no gradient is lost, and none loses digits"), (".sx-reach", "beyond both ends"),
        ('.sx-histogram .sx-flushed[d=""]', 1), ('.sx-histogram .sx-subnormal[d=""]', 1),
    ]),
    ("AccumulationExplorer", {"micro_batch": 8}, [(STATUS, "64 sequences as 8 pieces of 8: 15.52 GiB at the peak")]),
    ("AccumulationExplorer", {"micro_batch": 16}, [(STATUS, "The T4 shows a program 14.56 GiB: 14.61 too few.")]),
    ("AccumulationExplorer", {"micro_batch": 2}, [(STATUS, "as 32 pieces of 2: 5.28 GiB")]),
    ("AccumulationExplorer", {"global_batch": 8, "micro_batch": 8}, [(STATUS, "8 sequences in one piece")]),
    ("AccumulationExplorer", {"micro_batch": 4, "optimizer": "sgd"}, [(STATUS, "7.76 GiB at the peak")]),
    ("AccumulationExplorer", {"gpu": "L4"}, [(".ax-line", ["L4: 22.0 GiB"])]),
    ("RingExplorer", {"step": 3}, [(".rx-done", 4), (STATUS, "Every rank now owns one finished part.")]),
    ("BucketExplorer", {}, [(".bk-best", "with 32 MiB")]),
    ("BucketExplorer", {"bucket": 33}, [
        (STATUS, "1 bucket, 14 messages from each rank"), (STATUS, "0 % are hidden"),
    ]),
    ("BucketExplorer", {"world": 10}, [(".bk-best", "with 1 GiB")]),
    ("BucketExplorer", {"gb_per_s": 450, "network": "GPT-2 large", "overlapped": False}, [(STATUS, "0 % are hidden")]),
    ("MatmulExplorer", {"rank": 2}, [
        (".mm-note", ["Weights, of A: rank 2 holds columns 256 to 383; of B: rank 2 holds rows 256 to 383."]),
        ('role=img[name="H, 64 × 512: rank 2 holds columns 256 to 383"]', 1),
        ('role=img[name="Y, 64 × 128: rank 2 holds its term"]', 1),
        (".mm-faded", 4 * 3),  # A, H, B and Y's terms, of which three ranks step back
    ]),
    ("MemoryBarExplorer", {"optimizer": "sgd"}, [(".ex-key >> nth=2", ["optimizer 5.8 GiB"])]),  # the fp32 copy
    ("MemoryBarExplorer", {"optimizer": "sgd", "precision": "bf16"}, [(".ex-key >> nth=2 >> visible=true", 0)]),
    ("ZeroExplorer", A100 | {"ranks": 4}, [
        (STATUS, ["GPT-3 6.7B on 4 × A100 40GB, states alone: fits from stage 2 on."]),
    ]),
    ("ZeroExplorer", A100, [(STATUS, ["GPT-3 6.7B on 8 × A100 40GB, states alone: fits from stage 1 on."])]),
    ("ZeroExplorer", A100 | {"model": "GPT-3 175B"}, [
        (STATUS, ["GPT-3 175B on 8 × A100 40GB, states alone: does not fit. Stage 3 does, from 83 ranks on."]),
    ]),
    ("ZeroExplorer", A100 | {"model": "GPT-3 175B", "sequences": 16}, [
        (STATUS, ["GPT-3 175B on 8 × A100 40GB: does not fit, however many ranks there are."]),
        (".zx-facts >> nth=3", "never fits"),
    ]),
    ("ZeroExplorer", A100 | {"model": "GPT-2 XL", "sequences": 16}, [
        (STATUS, ["GPT-2 XL on 8 × A100 40GB: fits without ZeRO."]),
    ]),
    ("TiersExplorer", {}, [(STATUS, [
        "GPT-3 6.7B: everything fits. A step takes 4.37 s if nothing is hidden, "
        "and the card computes in 2.50 s of them: 57 %."
    ])]),
    ("TiersExplorer", {"sequences": 2}, [(STATUS, "in 1.25 s of them: 40 %.")]),
    ("TiersExplorer", {"sequences": 2, "optimizer": "GPU"}, [
        (STATUS, ["GPT-3 6.7B: 102.5 GiB do not fit on the GPU, which has 39.5 GiB."]), (".ex-longer", 1),
    ]),
    ("CubeExplorer", {}, [(STATUS, "over the network along data and pipeline."), (".cx-met", 5)]),
    ("CubeExplorer", {"order": "tensor, pipeline, data"}, [(STATUS, "over the network along tensor.")]),
    ("CubeExplorer", {"machine": 8, "rank": 4}, [(".cx-machine", 2), (".cx-self", ["4"])]),
    ("ExpertsExplorer", {}, [
        (f"{STATUS} >> nth=0", [
            "8 experts with 10 places each: 10 of 64 choices are dropped, no token loses both; "
            "26 of 80 places stay empty."
        ]),
        (f"{STATUS} >> nth=1", [
            "Token 0 wants expert 3, where it gets place 1, and expert 1, which has no place left for it."
        ]),
        (".xp-dropped", 10),
    ]),
    ("ExpertsExplorer", {"token": 1}, [(f"{STATUS} >> nth=1", "Token 1 wants expert 4")]),
    ("ExpertsExplorer", {"capacity_factor": None}, [
        (f"{STATUS} >> nth=0", ["No limit: nobody is dropped, and queues may be of any length."]),
    ]),
    ("ExpertsExplorer", {"top_k": 1}, [(".xp-cell", 32)]),
    ("BowlExplorer", {}, [(STATUS, "tokens a parameter, for a loss of 1.741 nats")]),
    ("BowlExplorer", {"fit": "Chinchilla, 240 runs", "times": 96_000}, [
        (STATUS, f"for a loss of {CHINCHILLA:.3f} nats"), (STATUS, "billion parameters and"),
    ]),
    ("RestartExplorer", {}, [
        (STATUS, ["16 samples of 48 read by nobody. Nothing has said so."]), (".rs-lost", 16),
    ]),
    ("RestartExplorer", {"step": 1}, [(STATUS, ["8 samples of 48 read by nobody. Nothing has said so."])]),
    ("RestartExplorer", {"scheme": "by function"}, [(STATUS, ["All 48 samples are read, each once."])]),
    ("TilesExplorer", {}, [
        (f"{STATUS} >> nth=0", "Tile 6 of 16, queries 4 to 7, keys 4 to 7"),
        (".tl-now", 10),  # of 16, six are behind their queries
        ("text=values of keys 4 to 7: 9, 7, 4, 2", 1), ("text=read so far", 1),
    ]),
    ("TilesExplorer", {"step": 7}, [
        (f"{STATUS} >> nth=0", "it is skipped: nothing is read or computed"), (".tl-now", 0),
    ]),
    ("TilesExplorer", {"rows": 16, "columns": 16}, [
        (f"{STATUS} >> nth=0", "Tile 1 of 1"), (f"{FORWARD}[disabled]", 1),
    ]),
    ("MapExplorer", {"zero": 1, "tensor": 8, "pipeline": 1}, [(f"{STATUS} >> nth=0", "not legal here")]),
    ("MapExplorer", {"zero": 1, "gpu": "A100"}, [("text=●", 1)]),  # in the note below the map
]  # fmt: skip
"""Explorers, where their controls stand, and what is shown: a part of a text, [all of it], or how many there are."""

CLICKS = [
    ("FilmExplorer", ".fx-bars", 8.5 / 17, "every", 8),
    ("BucketExplorer", ".bk-sizes", 10.5 / 24, "bucket", 20),
    ("ScaleExplorer", ".sx-overview", (16 + 8 + 0.5) / 49, "power", 16),
]
"""Charts whose columns choose: how far from the left is clicked, and what is chosen."""


@pytest.fixture
def at(everybody: tuple[Page, list[str]], request: pytest.FixtureRequest) -> Shown:
    return alone_on_the_page(everybody[0], request.param)


@pytest.mark.parametrize(("at", "place", "shown"), PLACES, indirect=["at"])
def test_a_place_says_and_shows_its_numbers(at: Shown, place: dict[str, Any], shown: list[tuple[str, Any]]) -> None:
    at.set(place)
    for selector, due in shown:
        found = at.root.locator(selector)
        if isinstance(due, int):
            expect(found).to_have_count(due)
        elif isinstance(due, list):
            expect(found).to_have_text(due)
        else:
            expect(found).to_contain_text(due)


@pytest.mark.parametrize(("at", "chart", "share", "control", "value"), CLICKS, indirect=["at"])
def test_a_column_is_a_way_to_choose(at: Shown, chart: str, share: float, control: str, value: int) -> None:
    column = at.root.locator(chart)
    box = column.bounding_box()
    assert box
    column.click(position={"x": box["width"] * share, "y": box["height"] - 5})
    assert at.look().values[control] == value
