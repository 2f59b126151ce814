"""Pictures of budgets say in words what the data says."""

import numpy as np

from course_lib.predict.laws import Runs, ScalingLaw
from course_pages.lesson14.pictures import bowls, one_bowl

LAW = ScalingLaw(1.4, 9.0, 120.0, 0.37, 0.44)


def test_bowls_tell_each_bottom() -> None:
    n = np.array([1e4, 2e4, 4e4, 1e4, 2e4, 4e4])
    budgets = np.repeat([1e11, 2e11], 3)
    picture = bowls(Runs(n, budgets / 6 / n, LAW.loss(n, budgets / 6 / n)), budgets, LAW, caption="Two.")
    (axes,) = picture.figure.axes
    assert [line.get_marker() for line in axes.lines].count("x") == 2
    best = LAW.optimum(2e11)
    assert f"2.0e+11 FLOPs: {best[0]:,.0f} parameters, {LAW.loss(*best):.2f} nats" in picture.alt and picture.png


def test_one_bowl_has_its_band_and_its_bottom() -> None:
    bowl = {"x": [4.0, 5.0], "loss": [2.0, 1.8, 2.0], "low": [1.9, 1.7, 1.9], "high": [2.1, 1.9, 2.1],
            "best": [10**4.5, 1e6, 1.8],
            "runs": [[4.4, 1.81]]}  # fmt: skip
    picture = one_bowl(bowl, caption="A bowl.", alt="Words.")
    assert (
        picture.alt == "Words." and picture.png and one_bowl(bowl | {"runs": []}, caption="No runs.", alt="None.").png
    )
