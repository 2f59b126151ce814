"""The explorer of the three tiers: its bytes, its bandwidths, its sentence and its picture, without a browser."""

from __future__ import annotations

import pytest

from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup
from course_pages.lesson11.explorer import PLACES, STATES, TiersExplorer, speed_of, tiers_table
from course_pages.shared.models_on_gpus import passing


def test_bytes_are_what_the_library_predicts() -> None:
    """The optimizer state, three quarters of everything, is away: as in ZeRO-Offload's table."""
    explorer = TiersExplorer(model="GPT-3 175B", optimizer="main memory", checkpoints="disk", sequences=2)
    setup = Setup(zoo.GPT3_175B, 2, precision="mixed", recompute="full")
    psi = int(predict.parameters(zoo.GPT3_175B))
    tiers = explorer.tiers
    assert tiers["GPU"].parameters + tiers["GPU"].gradients == 4 * psi
    assert tiers["GPU"].total == 4 * psi + tiers["GPU"].temporaries
    assert tiers["main memory"].total == tiers["main memory"].optimizer == 12 * psi
    assert tiers["disk"].total == tiers["disk"].activations == predict.activations_paper(setup)
    assert tiers_table()["states"]["GPT-3 175B"] == [2 * psi, 2 * psi, 12 * psi]
    assert list(explorer.capacities) == list(PLACES)


def test_what_passes_counts_before_a_tier_fits() -> None:
    """What lesson 10 holds for a moment; of weights that are away, whole units come to the card."""
    for weights, zero in (("GPU", 0), ("disk", 3)):
        tiers = TiersExplorer(model="GPT-3 6.7B", sequences=32, weights=weights, gradients="disk").tiers
        assert tiers["GPU"].temporaries == passing("GPT-3 6.7B", zero, 32).total
        assert not tiers["main memory"].temporaries and not tiers["disk"].temporaries


PSI = int(predict.parameters(zoo.GPT3_6_7B))
CUT = {"weights": "GPU", "gradients": "GPU", "optimizer": "GPU", "checkpoints": "GPU"}


@pytest.mark.parametrize(
    ("chosen", "processor", "bytes_a_parameter"),
    [
        ({}, True, 0),
        ({"gradients": "main memory"}, True, 4),
        ({"optimizer": "main memory"}, False, 24),
        ({"optimizer": "main memory"}, True, 4),
        ({"gradients": "main memory", "optimizer": "main memory"}, True, 4),
        ({"gradients": "main memory", "optimizer": "main memory"}, False, 28),
        ({"weights": "main memory"}, True, 8),  # 6 without recompute
        ({"weights": "main memory", "gradients": "main memory", "optimizer": "main memory"}, True, 8),
    ],
)
def test_what_crosses_is_the_cut_of_the_lesson(chosen: dict[str, str], processor: bool, bytes_a_parameter: int) -> None:
    explorer = TiersExplorer(None, processor=processor, **CUT | chosen)
    assert sum(link for link, _ in explorer.journeys.values()) == bytes_a_parameter * PSI
    assert explorer.seconds["link"] == pytest.approx(bytes_a_parameter * PSI / 32e9)
    assert not any(disk for _, disk in explorer.journeys.values())


def test_zero_offload_takes_the_seconds_of_the_formula() -> None:
    """With recompute the card has 8 FLOPs a parameter and token: 4/3 of the formula's."""
    explorer = TiersExplorer(sequences=4, gradients="main memory")
    due = predict.offloaded_step(PSI, 4 * 2048 * 4 / 3, speed_of("A100 40GB"), 32e9, 8 * 25.6e9)
    assert list(explorer.seconds.values()) == pytest.approx([*due, 0])
    assert explorer.efficiency == pytest.approx(float(due.efficiency))
    assert speed_of("V100 32GB") == pytest.approx(70e12)


def test_a_disk_is_read_and_written() -> None:
    explorer = TiersExplorer(None, **dict.fromkeys(STATES, "disk"))
    kept = explorer.tiers["disk"].activations
    assert sum(disk for _, disk in explorer.journeys.values()) == (8 + 4 + 24) * PSI + 2 * kept
    assert explorer.seconds["disk"] == pytest.approx((36 * PSI + 2 * kept) / 8e9)
    assert explorer.journeys["weights"] == (6 * PSI, 8 * PSI), "the new ones are written beside the processor"
