"""Pictures of plans draw what they are handed; the page's fit leaves out what it predicts."""

from __future__ import annotations

import numpy as np
import pytest

from course_lib import predict
from course_pages.lesson17 import held_out, pictures, truth


def test_every_timed_run_is_a_point_in_both_panels() -> None:
    found = {
        machine: {"seconds": 1.1 * runs.seconds, "thumb": 2.0 * runs.seconds} for machine, runs in truth.read().items()
    }
    picture = pictures.ratios(found, caption="Points.")
    timed = sum(int((runs.clean & np.isfinite(runs.seconds)).sum()) for runs in truth.read().values())
    for axes, ratio in zip(picture.figure.axes, (2.0, 1.1)):
        drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines[:-1]])
        assert np.isfinite(drawn).sum() == timed and np.nanmedian(drawn) == pytest.approx(ratio)
    assert f"median error 10% over {timed} runs" in picture.alt


def test_points_lie_on_their_curves() -> None:
    share = float(predict.waste(600.0, 60.0, 7200.0))
    picture = pictures.lost_time({"a run": 7200.0}, {"a run": [(600.0, share)]}, 60.0, caption="A bottom.")
    (axes,) = picture.figure.axes
    (x, y), (_, point) = (np.asarray(line.get_data(), float) for line in axes.lines[:2])
    assert np.interp(10.0, x, y) == pytest.approx(point[0], rel=1e-3)
    assert "near 15 minutes" in picture.alt


def test_bars_are_as_long_as_what_they_show() -> None:
    sizes = {"states": np.array([1270.0, 14.0]), "activations": np.array([255.0, 1.3])}
    picture = pictures.cuts(["07 replicas", "03 recompute"], sizes, 79.0, caption="Shorter.")
    (axes,) = picture.figure.axes
    assert [bar.get_width() for bar in axes.patches] == [1270.0, 14.0, 255.0, 1.3]  # type: ignore[attr-defined]
    assert "03 recompute: 14 GB of states, 1 GB of activations" in picture.alt


def test_a_run_does_not_judge_a_fit_that_has_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is predicted once, by constants of a fit without it."""
    seen: list[set[float]] = []
    machine = "A100 Megatron-LM"
    runs = truth.read()[machine]
    monkeypatch.setattr(truth, "read", lambda: {machine: runs})
    real = held_out.fit
    monkeypatch.setattr(held_out, "fit", lambda name, part: (seen.append(set(part.seconds)), real(name, part))[1])
    predicted = held_out.held_out()[machine]["seconds"]
    assert len(seen) == 3 and np.isfinite(predicted).all()
    judged = [set(runs.seconds) - each for each in seen]
    assert set.union(*judged) == set(runs.seconds) and sum(map(len, judged)) == len(set(runs.seconds))
