"""What a link to another memory costs: the formulas agree with each other, and refuse what makes no sense."""

import pytest

from course_lib import predict
from course_lib.predict import Setup
from course_lib.predict.offload import OffloadedState, kept_on_device

MIXED = Setup(1e6, 1, precision="mixed")


def test_what_stays_and_what_leaves_is_everything() -> None:
    for away in ({"parameters"}, {"gradients", "optimizer"}, {"parameters", "gradients", "optimizer"}):
        rest = {"parameters", "gradients", "optimizer"} - away
        assert kept_on_device(MIXED, away) + kept_on_device(MIXED, rest) == 16e6


@pytest.mark.parametrize("state", ["weights", "gradients", "optimizer", "checkpoints"])
def test_the_bandwidth_for_an_efficiency_gives_it(state: OffloadedState) -> None:
    intensity = predict.flops_a_byte(state, 4, 512, width=64)
    bandwidth = predict.bandwidth_for(0.8, intensity, 1e12)
    assert predict.link_efficiency(intensity, bandwidth, 1e12) == pytest.approx(0.8)


def test_intensities_are_flops_over_bytes() -> None:
    """Of a block with 12·width² parameters, from the step's FLOPs and from what travels."""
    batch_size, seq, width = 4, 512, 64
    params, tokens = 12 * width**2, batch_size * seq
    flops = 8 * params * tokens
    assert predict.flops_a_byte("weights", batch_size, seq) == flops / (3 * 2 * params + 2 * params)
    assert predict.flops_a_byte("optimizer", batch_size, seq) == flops / (2 * 16 * params)
    assert predict.flops_a_byte("checkpoints", batch_size, seq, width) == flops / (2 * 2 * width * tokens)
    assert predict.flops_a_byte("checkpoints", batch_size, seq, width, 3) == 3 * flops / (2 * 2 * width * tokens)


def test_senseless_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="'moments'"):
        kept_on_device(MIXED, {"moments"})
    with pytest.raises(ValueError, match="'moments'"):
        predict.flops_a_byte("moments", 1, 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="width"):
        predict.flops_a_byte("checkpoints", 1, 1)
    with pytest.raises(ValueError, match="efficiency"):
        predict.bandwidth_for(1.0, 10, 1e12)
    with pytest.raises(ValueError, match="bytes_per_s"):
        predict.link_efficiency(10, 0, 1e12)
