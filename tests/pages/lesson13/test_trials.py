"""What lesson 13 trains: runs have what their pictures need, and a wrong layer is far from the reference."""

from __future__ import annotations

from torch import Tensor

from course_kit import ranks
from course_lib.model.experts import ExpertConfig
from course_pages.lesson13 import trials


def nothing_paid(probabilities: Tensor, chosen: Tensor) -> float:
    return 0.0


def first_share(probabilities: Tensor, chosen: Tensor) -> Tensor:
    return 1000 * probabilities[:, 0].mean()


def short_runs() -> list[trials.Run]:
    each = {"nothing": None, "one MLP": None, "experts": None, "biased": None}
    runs = [trials.read_stories(layer, penalty, steps=8) for layer, penalty in each.items()]
    return [*runs, trials.read_stories("experts", first_share, steps=8)]


def test_runs_have_what_their_pictures_need() -> None:
    nothing, one, experts, biased, paid = ranks.run(short_runs, world_size=1, diagnose=False)[0]
    assert all(len(run.losses) == 8 for run in (nothing, one, experts, biased, paid))
    assert nothing.largest == [] and one.largest == [1.0] * 8 and one.dropped == [0.0] * 8
    assert experts.losses != biased.losses and experts.losses != paid.losses
    assert len(experts.largest) == 8 and max(experts.dropped) > 0.5  # the crowd is there after a few steps
    assert nothing.alike == [] and experts.alike[0] < 0.2 and 0.9 < experts.alike[-1] <= 1.0001


def test_more_room_knows_more_corners() -> None:
    shares = []
    for hidden in (4, 128):
        config = ExpertConfig(32, hidden, 1, 1)
        shares.append(ranks.run(trials.learn_town, config, nothing_paid, 240, world_size=1, diagnose=False)[0])
    assert len(shares[0]) == 12 and shares[1][-1] > 1.5 * shares[0][-1] > 1.5 / trials.SHOPS


class StaysAtHome(trials.OwnExperts):
    """Asks only this rank's experts, whatever the router says."""

    def forward(self, x: Tensor) -> Tensor:
        number = (x @ self.router.T).argmax(1) % len(self.up)
        return trials.computed(x, number, self.up, self.down) * (x @ self.router.T).softmax(-1).amax(1, keepdim=True)


def test_a_layer_that_asks_the_wrong_experts_is_far_from_the_reference() -> None:
    assert min(ranks.run(trials.farthest, StaysAtHome, world_size=2, diagnose=False)) > 1e-6
