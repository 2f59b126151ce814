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
from course_pages.lesson02.explorer import WIDTHS, MemoryBarExplorer, held, memory_table, shape, steps
from course_pages.lesson02.moments import PARTS, TERMS, sums, terms, that_may_be_largest


def test_the_account_is_the_librarys():
    explorer = MemoryBarExplorer(
        layers=12, width=768, batch=4, seq=512,
        precision="bf16", optimizer="momentum", attention="fused", recompute="full",
    )  # fmt: skip
    setup = Setup(shape(12, 768, 512, "fused"), 4, 512, precision="bf16", optimizer="momentum", recompute="full")
    assert explorer.account == predict.peak(setup) and explorer.account.phase == "backward"
    explorer.recompute = "none"
    assert explorer.account == predict.peak(setup.with_(recompute="none"))


def added(table, run) -> tuple[int, str, dict[str, int]]:
    """What the script adds up: a number of parameters, and bytes by category at the largest of the moments."""
    heads = shape(1, run["width"], run["seq"], "fused").heads
    these = terms(run["layers"], run["batch"], run["seq"], run["width"], heads)

    def bytes_of(sums):
        return [sum(factor * term for factor, term in zip(factors, these, strict=True)) for factors in sums]

    bits, many = "fp32" if run["precision"] == "fp32" else "16 bits", 1 if run["batch"] == 1 else "more"
    kind = f"{run['precision']} {run['optimizer']}"
    parameters, optimizer = bytes_of(table["states"][kind])
    moments = table["passes"][f"{bits} {run['attention']} {run['recompute']} {many}"] + table["updates"][kind]
    phase, parts = max(((phase, bytes_of(sums)) for phase, sums in moments), key=lambda each: sum(each[1]))
    account = {"parameters": parameters, "optimizer": optimizer, **dict(zip(PARTS, parts, strict=True))}
    return parameters // (4 if bits == "fp32" else 2), phase, account


def test_the_largest_of_the_tables_moments_is_the_librarys_peak():
    chosen, offers = random.Random(0), {name: each.values for name, each in MemoryBarExplorer.controls().items()}
    runs = [{name: chosen.choice(values) for name, values in offers.items()} for _ in range(250)]
    runs += [{**runs[0], "batch": batch, "precision": precision, "attention": attention, "recompute": recompute}
             for batch in (1, 2) for precision in ("fp32", "mixed", "bf16")
             for attention in ("explicit", "fused") for recompute in ("none", "full")]  # fmt: skip
    phases = set()
    for run in runs:
        run["layers"] = min(run["layers"], 24)  # the library follows each layer
        run |= {"seq": min(run["seq"], 1024), "batch": min(run["batch"], 8)} if run["width"] < 700 else {}  # all phases
        count = predict.parameters(shape(run["layers"], run["width"], run["seq"], run["attention"]))
        account = held(**run)
        phases.add(account.phase)
        plain = {category: int(nbytes) for category, nbytes in account.items()}
        assert added(memory_table(), run) == (count, account.phase, plain), run
    assert phases == {"forward", "backward", "optimizer step"}


def test_a_sum_that_does_not_exist_is_noticed():
    with pytest.raises(ArithmeticError, match="no sum of these terms"):
        sums(lambda setup: {"odd": [setup.gpt.layers**2]}, steps())


def test_a_moment_that_may_be_largest_is_kept():
    """Of three moments, the second never exceeds the first, and the third does for many layers."""
    nothing = [0] * len(TERMS)
    flat, lower, steep = (list(nothing) for _ in range(3))
    flat[0], lower[0], steep[TERMS.index((1, 0, 0, 0, 0))] = 100, 99, 1
    found = {"flat": [flat], "lower": [lower], "steep": [steep]}
    assert that_may_be_largest(found) == [("flat", [flat]), ("steep", [steep])]


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
        and "at the peak (backward). It fits on: V100 32GB" in alt
    )
    MemoryBarExplorer(layers=96, width=12288).show()
    assert "It fits on: none of the cards" in sent[2].metadata["image/png"]["alt"]


def test_every_choice_makes_a_model():
    for width in WIDTHS:
        assert shape(1, width, 128, "fused").head_width in (64, 128)
