"""Memory pictures: the areas are the record's bytes, the bars the accounts', and the words say the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from course_kit import measure
from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.notebook.picture import PALETTE
from course_kit.units import Bytes
from course_pages.shared import memory


@pytest.fixture
def record():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with measure.memory(model, optimizer) as record:
        for _ in range(2):
            model(torch.ones(256, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return record


def test_the_areas_are_the_bytes(record):
    (axes,) = memory.memory_timeline(record).figure.axes
    tops = [np.asarray(area.get_paths()[0].vertices)[:, 1].max() * 2**10 for area in axes.collections]
    stacked = np.cumsum(record.timeline.bytes, axis=1).max(axis=0)
    assert axes.get_ylabel() == "alive (KiB)" and np.allclose(tops, stacked)
    colors = [str(area.get_facecolor()) for area in axes.collections]
    assert len(set(colors)) == 5


def test_phases_and_peak_are_marked(record):
    (axes,) = memory.memory_timeline(record).figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("optimizer step") == 2 and f"peak {record.peak.total:.1KiB}" in texts
    starts = [np.asarray(line.get_xdata())[0] for line in axes.lines]
    assert starts[:-1] == [phase.start for phase in record.timeline.phases] and starts[-1] == record.timeline.peak_row


def test_the_words_say_what_is_drawn(record):
    picture = memory.memory_timeline(record)
    caption, alt = picture.caption, picture.alt
    assert f"The peak of {record.peak.total} comes during the backward pass" in caption
    assert f"{record.peak.activations}" in alt and "At entry: parameters" in alt and "After backward" in alt
    assert memory.memory_timeline(record, caption="Two steps.").caption == "Two steps."


def test_an_empty_record_can_be_drawn():
    with measure.memory() as empty:
        pass
    picture = memory.memory_timeline(empty)
    assert picture.figure.axes[0].get_ylim()[1] > 0 and "nothing" in picture.alt


def test_the_bars_are_the_accounts():
    accounts = {
        "fp32": MemoryAccount(Bytes(4 * 10**9), Bytes(4 * 10**9), Bytes(8 * 10**9)),
        "mixed": MemoryAccount(Bytes(2 * 10**9), Bytes(2 * 10**9), Bytes(12 * 10**9)),
    }
    limit = {"a small GPU": Bytes(8 * 10**9)}
    picture = memory.memory_bar(accounts, limit=limit, unit="GB", caption="Both weigh 16 bytes a parameter.")
    (axes,) = picture.figure.axes
    lengths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert lengths == {"parameters": [4, 2], "gradients": [4, 2], "optimizer": [8, 12]}
    assert [text.get_text() for text in axes.texts] == ["16.0 GB", "16.0 GB", "a small GPU"]
    assert list(np.asarray(axes.lines[0].get_xdata())) == [8, 8]
    assert picture.caption.startswith("Both weigh") and "Limit of a small GPU: 7.45 GiB." in picture.alt


def test_every_category_has_its_colour():
    assert len({PALETTE[category] for category in CATEGORIES}) == 5


def test_a_bar_against_cards():
    account = MemoryAccount(Bytes(4 * 2**30), Bytes(4 * 2**30), Bytes(16 * 2**30))
    cards = {"small": Bytes(16 * 2**30), "large": Bytes(48 * 2**30)}
    (axes,) = memory.memory_against_gpus(account, cards, caption="c", alt="a").figure.axes
    assert [text.get_text() for text in axes.texts] == ["at least 2 of them", "fits, 50% full", "24.0 GiB"]
    lengths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert lengths == [[4], [4], [16], [16], [48]]


OVER = [1, 2, 4]
LINES = {"training": [Bytes(n * 2**20) for n in OVER], "inference": [Bytes(2**20)] * 3}


def test_growth_lines_and_dots_are_the_numbers():
    measured = {"training": LINES["training"]}
    (axes,) = memory.memory_growth(OVER, LINES, along="layers", measured=measured, caption="c").figure.axes
    drawn = [list(np.asarray(line.get_ydata())) for line in axes.lines]
    assert drawn == [[1, 2, 4], [1, 1, 1], [1, 2, 4]]
    assert axes.lines[2].get_linestyle() == "None" and axes.get_ylabel() == "alive (MiB)"
    assert [text.get_text() for text in axes.texts] == ["training", "inference"]


def test_growth_has_limits_and_logarithms():
    limits = {"a card": Bytes(2**21)}
    (axes,) = memory.memory_growth(OVER, LINES, along="layers", limits=limits, log=True, caption="c").figure.axes
    assert axes.get_yscale() == axes.get_xscale() == "log"
    assert list(np.asarray(axes.lines[-1].get_ydata())) == [2, 2]


KEPT = {
    "short": [("input", Bytes(2**20)), ("scores", Bytes(2**20))],
    "long": [("input", Bytes(2**20)), ("scores", Bytes(2**22))],
}


def test_every_kept_tensor_has_a_bar_on_one_scale():
    picture = memory.kept_tensors(KEPT, caption="One of them grew.")
    short, long = picture.figure.axes
    widths = [[bar.get_width() for bar in axes.patches] for axes in (short, long)]  # type: ignore[attr-defined]
    assert widths == [[1, 1], [1, 4]]
    assert short.get_xlim() == long.get_xlim() and short.get_title() == "short: 2.0 MiB"
    assert [label.get_text() for label in short.get_yticklabels()] == ["input", "scores"]
    assert "long: input 1.00 MiB, scores 4.00 MiB." in picture.alt and picture.caption == "One of them grew."
