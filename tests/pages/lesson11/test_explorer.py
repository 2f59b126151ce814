"""The explorer of the three tiers: its bytes, its bandwidths, its sentence and its picture, without a browser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from course_kit.notebook import picture as style
from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup
from course_lib.predict.offload import kept_on_device
from course_pages.lesson11.explorer import GOAL, PLACES, STATES, TiersExplorer, intensity_of, speed_of, tiers_table


def test_bytes_are_what_the_library_predicts() -> None:
    """The optimizer state, three quarters of everything, is away: as in ZeRO-Offload's table."""
    explorer = TiersExplorer(model="GPT-3 175B", optimizer="main memory", checkpoints="disk", sequences=2)
    setup = Setup(zoo.GPT3_175B, 2, precision="mixed", recompute="full")
    psi = int(predict.parameters(zoo.GPT3_175B))
    tiers = explorer.tiers
    assert tiers["GPU"].total == kept_on_device(Setup(psi, 1, precision="mixed"), {"optimizer"}) == 4 * psi
    assert tiers["main memory"].total == tiers["main memory"].optimizer == 12 * psi
    assert tiers["disk"].total == tiers["disk"].activations == predict.activations_paper(setup)
    assert tiers_table()["states"]["GPT-3 175B"] == [2 * psi, 2 * psi, 12 * psi]


def test_efficiency_is_the_papers() -> None:
    """On its V100, of which it reaches 70 TFLOP/s, at a batch of 2 × 1024 tokens."""
    explorer = TiersExplorer(model="GPT-2 XL", gpu="V100 32GB", sequences=2, weights="disk", processor=False)
    speed = speed_of("V100 32GB")
    assert speed == pytest.approx(70e12)
    found, width = explorer.travels, zoo.GPT2_XL.config.width
    for state in STATES:
        intensity = predict.flops_a_byte(state, 2, 1024, width)
        assert found[state].intensity == intensity == intensity_of(state, "GPT-2 XL", 2)
        assert found[state].needed == predict.bandwidth_for(GOAL, intensity, speed)
    assert found["weights"].efficiency == predict.link_efficiency(2048, 8e9, speed)
    assert found["optimizer"].efficiency == predict.link_efficiency(512, 32e9, speed)
    assert found["gradients"].efficiency is found["checkpoints"].efficiency is None


@pytest.mark.parametrize(
    ("chosen", "gb_per_s"),
    [
        ({"weights": "GPU"}, 1555),
        ({"weights": "main memory"}, 32),
        ({"weights": "disk"}, 8),
        ({"weights": "disk", "disk": "four on PCIe 5.0"}, 32),
        ({"weights": "disk", "disk": "four on PCIe 5.0", "link": "PCIe 5.0"}, 64),
    ],
)
def test_a_way_is_as_fast_as_its_slowest_part(chosen: dict[str, str], gb_per_s: float) -> None:
    assert TiersExplorer(None, **chosen).travels["weights"].bytes_per_s == gb_per_s * 1e9


def test_a_processor_that_runs_adam_has_the_state_beside_it() -> None:
    explorer = TiersExplorer(optimizer="main memory")
    assert explorer.travels["optimizer"].bytes_per_s == 8 * 25.6e9
    explorer.processor = False
    assert explorer.travels["optimizer"].bytes_per_s == 32e9
    explorer.optimizer = "disk"
    assert explorer.travels["optimizer"].bytes_per_s == 8e9


@pytest.mark.parametrize("wrong", [{"weights": "tape"}, {"memory": "1 GiB"}, {"disk": "two"}, {"sequences": 3}])
def test_what_is_not_offered_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="choose one of"):
        TiersExplorer(None, **wrong)


def test_show_sends_the_widget_with_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: sent.append(SimpleNamespace(data=data, **rest)))
    explorer = TiersExplorer(model="GPT-NeoX-20B", gradients="main memory")
    explorer.show()
    assert sent[0].data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    told = sent[0].metadata["image/png"]["alt"]
    assert "In GPU 42.4 GiB of 40 GiB, too much; main memory 268.0 GiB of 512 GiB; disk 0.0 GiB" in told
    assert "Weights stay on the GPU. Gradients in main memory: 32 GB/s, the GPU computes 60% of the time" in told
    assert list(explorer.capacities) == list(PLACES)
