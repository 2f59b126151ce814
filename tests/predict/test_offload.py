"""What a link to another memory costs: the formulas agree with each other, and refuse what makes no sense."""

import pytest

from course_lib import predict
from course_lib.predict import Setup
from course_lib.predict.offload import OffloadedState
from tests.predict.papers import kept_on_device
from tests.predict.refused import refused


@pytest.mark.parametrize("state", ["parameters", "gradients", "optimizer", "checkpoints"])
def test_the_bandwidth_for_an_efficiency_gives_it(state: OffloadedState) -> None:
    intensity = predict.flops_a_byte(state, 4, 512, width=64)
    bandwidth = predict.bandwidth_for(0.8, intensity, 1e12)
    assert predict.link_efficiency(intensity, bandwidth, 1e12) == pytest.approx(0.8)


def test_intensities_are_flops_over_bytes() -> None:
    """Of a block with 12·width² parameters, from the step's FLOPs and from what travels."""
    batch_size, seq, width = 4, 512, 64
    params, tokens = 12 * width**2, batch_size * seq
    flops = 8 * params * tokens
    assert predict.flops_a_byte("parameters", batch_size, seq) == flops / (3 * 2 * params + 2 * params)
    assert predict.flops_a_byte("optimizer", batch_size, seq) == flops / (2 * 16 * params)
    assert predict.flops_a_byte("checkpoints", batch_size, seq, width) == flops / (2 * 2 * width * tokens)
    assert predict.flops_a_byte("checkpoints", batch_size, seq, width, 3) == 3 * flops / (2 * 2 * width * tokens)


A100, PCIE_4, DDR4 = 125e12, 31.5e9, {4: 102.4e9, 8: 204.8e9}  # an A100's share of its peak; channels of DDR4-3200


@pytest.mark.parametrize(("channels", "tokens", "share"), [(8, 53_109, 0.801), (4, 82_406, 0.722)])
def test_the_processor_is_the_third_term(channels: int, tokens: float, share: float) -> None:
    """By hand: 9 · 125e12 / 6 · (4 / 31.5e9 + 32 / M); with the link alone 23,810 tokens seem to be enough."""
    assert predict.tokens_for(0.9, A100, PCIE_4, DDR4[channels]) == pytest.approx(tokens, rel=1e-4)
    step = predict.offloaded_step(13e9, tokens, A100, PCIE_4, DDR4[channels])
    assert step.efficiency == pytest.approx(0.9, rel=1e-4)
    few = predict.offloaded_step(13e9, 23_810, A100, PCIE_4, DDR4[channels])
    assert few.efficiency == pytest.approx(share, abs=1e-3)
    assert few.card / (few.card + few.link) == pytest.approx(predict.link_efficiency(1.5 * 23_810, PCIE_4, A100))


def test_gpus_of_a_machine_have_links_of_their_own_and_one_memory() -> None:
    one, eight = (predict.offloaded_step(1e9, 4096, A100, PCIE_4, DDR4[8], gpus) for gpus in (1, 8))
    assert (eight.card, eight.processor) == (one.card, one.processor) and eight.link == pytest.approx(one.link / 8)
    assert one == pytest.approx((6e9 * 4096 / 125e12, 4e9 / 31.5e9, 32e9 / 204.8e9))
    tokens = predict.tokens_for(0.5, A100, PCIE_4, DDR4[8], gpus=8)
    assert predict.offloaded_step(1e9, tokens, A100, PCIE_4, DDR4[8], 8).efficiency == pytest.approx(0.5)


test_senseless_arguments_are_refused = refused(
    *(
        (
            lambda unknown=unknown: predict.flops_a_byte(unknown, 1, 1),  # type: ignore[arg-type]
            f"parameters, gradients, optimizer or checkpoints; not '{unknown}'",
        )
        for unknown in ("moments", "weights")  # the account's word is parameters
    ),
    (lambda: kept_on_device(Setup(1e9), {"weights"}), "state='weights'"),
    (lambda: predict.flops_a_byte("checkpoints", 1, 1), "width"),
    (lambda: predict.bandwidth_for(1.0, 10, 1e12), "efficiency"),
    (lambda: predict.link_efficiency(10, 0, 1e12), "bytes_per_s"),
    (lambda: predict.offloaded_step(1e9, 1, A100, PCIE_4, 0), "memory_bytes_per_s"),
    (lambda: predict.tokens_for(1.0, A100, PCIE_4, DDR4[8]), "efficiency"),
)
