"""What papers print about memory, computed again by this library; real steps' peaks: `tests/predict/test_meter.py`."""

from collections.abc import Callable

from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup

from .rows import computed, figures, rows_of

ROWS = rows_of(__file__)


def zero_activations(b: int, s: int, h: int, l: int) -> float:  # noqa: E741
    """The paper's own rule, for 1.5 billion parameters in 16 bits: 12 tensors as large as a layer's input."""
    setup = Setup(zoo.GPT2_XL, b, s, precision="mixed")
    assert (setup.gpt.width, setup.gpt.layers) == (h, l)
    return Bytes(12 * l * predict.block_input(setup)).to("GB")


def boundary(tokens: float) -> list[float]:
    """One tensor between two layers of GPT-3, for a batch of 3.2 million tokens, in 16 and 32 bits; all of them."""
    setup = Setup(zoo.GPT3_175B, batch_size=int(tokens), seq=1)
    one = [predict.block_input(setup.with_(precision=each)).to("GB") for each in ("mixed", "fp32")]
    return [*one, *(setup.gpt.layers * gigabytes for gigabytes in one)]


def gopher_states() -> float:
    """bf16 weights and fp32 moments, with neither gradients nor an fp32 copy."""
    setup = Setup(zoo.GOPHER_280B)
    weights = predict.model_states(setup.with_(precision="bf16")).parameters
    return (weights + predict.model_states(setup).optimizer).to("TiB")


def states(params: float) -> float:
    return predict.model_states(Setup(params, precision="mixed")).total.to("GB")


COMPUTED: dict[str, Callable[..., float | list[float]]] = {
    "zero_1p5b_fp16": lambda params: predict.model_states(Setup(params, precision="mixed")).parameters.to("GB"),
    "zero_1p5b_states": states,
    "zero_fig1_stage0": states,
    "zero_act_1p5b_full": zero_activations,
    "zero_buffers": lambda params: [
        predict.model_states(Setup(int(n), gradients="fp32")).gradients.to("GB") for n in params
    ],
    "gopher_2p5TiB": gopher_states,
    "gpt3_boundary_act": boundary,
}  # fmt: skip


test_every_row_is_recomputed, test_published_figure = figures(ROWS, COMPUTED)


def test_the_rule_of_twelve_is_a_lower_bound() -> None:
    """Lesson 02: counted tensor by tensor, GPT-2 XL's step holds more, and the later paper's formula most."""
    inputs = ROWS["zero_act_1p5b_full"]["inputs"]
    setup, rule = Setup(zoo.GPT2_XL, inputs["b"], inputs["s"], precision="mixed"), computed(zero_activations, inputs)
    counted, later = predict.activations(setup).to("GB"), predict.activations_paper(setup).to("GB")
    assert 2 * rule < counted < later < 5 * rule
