"""The memory bar's account, its limits and its picture, all without a browser."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import traitlets

from course_lib import predict
from course_lib.explore.memory_bar import CHOICES, GPUS, MemoryBarExplorer, shape
from course_lib.figures import style
from course_lib.model import zoo
from course_lib.predict import Setup


def test_the_account_is_the_librarys():
    explorer = MemoryBarExplorer(12, 768, 4, 512, "bf16", "momentum", "fused", "full")
    config = shape(12, 768, 512, "fused")
    setup = Setup(config, 4, 512, precision="bf16", optimizer="momentum", recompute="full")
    states = predict.model_states(setup)
    account = explorer.account
    assert (account.parameters, account.gradients, account.optimizer) == tuple(states.values())[:3]
    assert account.activations == predict.activations(setup) and not account.temporaries
    explorer.recompute = "none"
    assert explorer.account.activations == predict.activations(setup.with_(recompute="none"))


def test_gpt2_xl_has_its_published_size():
    assert predict.parameters(shape(48, 1600, 1024, "explicit")) == predict.parameters(zoo.GPT2_XL) == 1_557_611_200


def test_cards_come_smallest_first():
    assert [int(gpu.memory) for gpu in GPUS] == sorted(int(gpu.memory) for gpu in GPUS)


@pytest.mark.parametrize(
    ("wrong", "offered"),
    [({"layers": 0}, "1 to 128"), ({"width": 1000}, "768, 1024"), ({"precision": "fp8"}, "fp32, mixed, bf16")],
)
def test_what_no_control_offers_is_refused(wrong, offered):
    with pytest.raises(ValueError, match=offered):
        MemoryBarExplorer(**wrong)
    (name, value) = next(iter(wrong.items()))
    with pytest.raises(traitlets.TraitError, match=name):
        setattr(MemoryBarExplorer(), name, value)


def test_show_sends_the_widget_with_its_picture(monkeypatch: pytest.MonkeyPatch):
    sent: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: sent.append(SimpleNamespace(data=data, **rest)))
    explorer = MemoryBarExplorer(batch=1)
    explorer.show()
    assert sent[0].data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert sent[0].data["image/png"]
    alt = sent[0].metadata["image/png"]["alt"]
    assert "48 layers, 1600 wide" in alt and "optimizer 17.4 GiB" in alt and "It fits on V100 32GB" in alt
    MemoryBarExplorer(96, 12288).show()
    assert "It fits on none of the cards" in sent[2].metadata["image/png"]["alt"]


def test_every_choice_makes_a_model():
    for width in CHOICES["width"]:
        assert shape(1, width, 128, "fused").head_width in (64, 128)
