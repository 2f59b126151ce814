"""The memory bar's account, its limits and its picture, all without a browser."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import traitlets

from course_kit.notebook import picture as style
from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup
from course_pages.lesson02.explorer import WIDTHS, MemoryBarExplorer, held, memory_table, shape


def test_the_account_is_the_librarys():
    explorer = MemoryBarExplorer(
        layers=12, width=768, batch=4, seq=512,
        precision="bf16", optimizer="momentum", attention="fused", recompute="full",
    )  # fmt: skip
    config = shape(12, 768, 512, "fused")
    setup = Setup(config, 4, 512, precision="bf16", optimizer="momentum", recompute="full")
    states = predict.model_states(setup)
    account = explorer.account
    assert (account.parameters, account.gradients, account.optimizer) == tuple(states.values())[:3]
    assert account.activations == predict.activations(setup) and not account.temporaries
    explorer.recompute = "none"
    assert explorer.account.activations == predict.activations(setup.with_(recompute="none"))


def added(table, run) -> list[int]:
    """What the script adds up: a number of parameters, bytes of them, of gradients, optimizer state, activations."""
    offers = {name: list(control.values) for name, control in MemoryBarExplorer.controls().items()}
    width, seq = (offers[name].index(run[name]) for name in ("width", "seq"))
    states = table["states"][f"{run['precision']} {run['optimizer']}"][width]
    kind = table["kinds"][f"{run['precision']} {run['attention']} {run['recompute']}"]
    one, two, more = ([once, layer] for once, layer in table["activations"][kind][width][seq])
    parts = one if run["batch"] == 1 else [a + (run["batch"] - 2) * b for a, b in zip(two, more)]
    counts = [once + run["layers"] * layer + run["seq"] * token for once, layer, token in states]
    return [*counts, parts[0] + run["layers"] * parts[1]]


def test_the_parts_of_the_table_add_up_to_the_librarys_bytes():
    chosen, offers = random.Random(0), {name: each.values for name, each in MemoryBarExplorer.controls().items()}
    runs = [{name: chosen.choice(values) for name, values in offers.items()} for _ in range(150)]
    runs += [{**runs[0], "batch": batch, "precision": precision, "attention": attention, "recompute": recompute}
             for batch in (1, 2) for precision in ("fp32", "mixed", "bf16")
             for attention in ("explicit", "fused") for recompute in ("none", "full")]  # fmt: skip
    runs = [{**run, "layers": min(run["layers"], 24)} for run in runs]  # the library follows each layer
    for run in runs:
        account = held(**run)
        count = predict.parameters(shape(run["layers"], run["width"], run["seq"], run["attention"]))
        bytes_of = [account.parameters, account.gradients, account.optimizer, account.activations]
        assert added(memory_table(), run) == [count, *bytes_of], run
        assert not account.temporaries


def test_gpt2_xl_has_its_published_size():
    assert predict.parameters(shape(48, 1600, 1024, "explicit")) == predict.parameters(zoo.GPT2_XL) == 1_557_611_200


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
    assert (
        "48 layers, 1600 wide" in alt
        and "optimizer 17.4 GiB" in alt
        and "Room for that, before the way back asks for more: V100 32GB" in alt
    )
    MemoryBarExplorer(layers=96, width=12288).show()
    assert "asks for more: none of the cards" in sent[2].metadata["image/png"]["alt"]


def test_every_choice_makes_a_model():
    for width in WIDTHS:
        assert shape(1, width, 128, "fused").head_width in (64, 128)
