"""What papers print about memory, computed again by this library.

`memory.json` holds each figure; see `rows.py`. `COMPUTED` says how the library gets it. The peaks of real steps are
in `tests/predict/test_peak.py`.
"""

from collections.abc import Callable

import pytest

from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup

from .rows import rows_of, within

ROWS = rows_of(__file__)


def zero_activations() -> float:
    """The paper's own rule: 12 tensors as large as a layer's input."""
    setup = gpt2_xl(ROWS["zero_act_1p5b_full"])
    return Bytes(12 * setup.gpt.layers * predict.block_input(setup)).to("GB")


def gpt2_xl(row: dict) -> Setup:
    """The paper's 1.5 billion parameters, in 16 bits."""
    i, setup = row["inputs"], Setup(zoo.GPT2_XL, row["inputs"]["b"], row["inputs"]["s"], precision="mixed")
    assert (setup.gpt.width, setup.gpt.layers) == (i["h"], i["l"])
    return setup


def boundary() -> list[float]:
    """One tensor between two layers of GPT-3, for a batch of 3.2 million tokens, in 16 and 32 bits; all of them."""
    tokens = int(ROWS["gpt3_boundary_act"]["inputs"]["tokens"])
    setup = Setup(zoo.GPT3_175B, batch_size=tokens, seq=1)
    one = [predict.block_input(setup.with_(precision=each)).to("GB") for each in ("mixed", "fp32")]
    return [*one, *(setup.gpt.layers * gigabytes for gigabytes in one)]


def gopher_states() -> float:
    """bf16 weights and fp32 moments, with neither gradients nor an fp32 copy."""
    setup = Setup(zoo.GOPHER_280B)
    weights = predict.model_states(setup.with_(precision="bf16")).parameters
    return (weights + predict.model_states(setup).optimizer).to("TiB")


def states(parameters: float) -> float:
    return predict.model_states(Setup(parameters, precision="mixed")).total.to("GB")


COMPUTED: dict[str, Callable[[], float | list[float]]] = {
    "zero_1p5b_fp16": lambda: predict.model_states(Setup(1.5e9, precision="mixed")).parameters.to("GB"),
    "zero_1p5b_states": lambda: states(1.5e9),
    "zero_fig1_stage0": lambda: states(7.5e9),
    "zero_act_1p5b_full": zero_activations,
    "zero_buffers": lambda: [
        predict.model_states(Setup(int(n), gradients="fp32")).gradients.to("GB")
        for n in ROWS["zero_buffers"]["inputs"]["params"]
    ],
    "gopher_2p5TiB": gopher_states,
    "gpt3_boundary_act": boundary,
}  # fmt: skip


def test_every_row_is_recomputed() -> None:
    assert set(COMPUTED) == set(ROWS)


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    assert COMPUTED[name]() == within(ROWS[name])


def test_the_rule_of_twelve_is_a_lower_bound() -> None:
    """Lesson 02: counted tensor by tensor, GPT-2 XL's step holds more, and the later paper's formula most."""
    setup = gpt2_xl(ROWS["zero_act_1p5b_full"])
    counted = predict.activations(setup).to("GB")
    later = predict.activations_paper(setup).to("GB")
    assert 2 * zero_activations() < counted < later < 5 * zero_activations()
