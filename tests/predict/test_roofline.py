"""Rooflines, the intensity of decoding, and what a draft is worth: by hand, and by chance."""

from __future__ import annotations

import pytest
import torch

from course_lib import predict
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup
from tests.predict.refused import refused


def test_a_roof_has_a_slope_a_corner_and_a_ceiling() -> None:
    assert predict.ridge(1e12, 1e11) == 10
    assert predict.attainable(5, 1e12, 1e11) == 5e11
    assert predict.attainable(10, 1e12, 1e11) == predict.attainable(99, 1e12, 1e11) == 1e12


def test_decoding_has_one_flop_a_byte_and_gains_by_the_batch() -> None:
    """Two FLOPs for a number of two bytes. A batch shares weights, never caches."""
    assert predict.decode_intensity(10**9, 1, 0) == predict.decode_intensity(10**9, 1, 10**9) == 1
    assert predict.decode_intensity(10**9, 64, 0) == 64
    assert predict.decode_intensity(10**9, 64, 2 * 10**9) == pytest.approx(2 * 64 / (1 + 64))
    assert predict.decode_intensity(10**9, 1, 0, element_bytes=4) == 0.5


@pytest.mark.parametrize("accepted, ahead", [(0.8, 4), (0.5, 3), (0.0, 5), (1.0, 5)])
def test_a_draft_is_worth_what_dice_say(accepted: float, ahead: int) -> None:
    right = torch.rand(200_000, ahead, generator=torch.Generator().manual_seed(0)) < accepted
    mean = 1 + right.long().cumprod(1).sum(1).double().mean().item()
    assert predict.tokens_a_pass(accepted, ahead) == pytest.approx(mean, rel=0.01)


TILED = Setup(GPTConfig(1, 8, 2, 10, 8, attention="tiled"), batch_size=1)
test_what_is_not_there_is_refused = refused(
    (lambda: predict.ridge(0, 1), "both must be positive"),
    (lambda: predict.tokens_a_pass(80, 4), "from 0 to 1"),
    (lambda: predict.peak(TILED.with_(device="cuda")), "followed on a CPU"),  # what it holds inside of a tile
    (lambda: predict.activations_paper(TILED.with_(precision="mixed")), "fused attention: True"),
)
