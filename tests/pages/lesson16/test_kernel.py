"""Lesson 16's Triton kernel computes what the page's own `gated` does: its lines on a CPU, all of it on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from course_pages.lesson16 import kernel

READS = ("lessons/src/16_*.py",)
PAGE = Path(__file__).parents[3] / "lessons/src/16_one_device_fast.py"


def gated() -> Callable[[Tensor, Tensor], Tensor]:
    """The function of section 4's cell."""
    (source,) = re.findall(r"^def gated\(x, y\):\n(?:    .*\n)+", PAGE.read_text("utf-8"), re.M)
    cell: dict[str, Any] = {"torch": torch, "F": F}
    exec(source, cell)
    return cell["gated"]


class Address(NamedTuple):
    """Numbers, and which of them are meant."""

    numbers: Tensor
    here: Tensor = torch.zeros((), dtype=torch.int64)

    def __add__(self, here: Tensor) -> Address:  # type: ignore[override]
        return Address(self.numbers, self.here + here)


class Language:
    """What the kernel uses of Triton's language, for the program `number`; none outside a tensor is touched."""

    arange, sigmoid, erf = staticmethod(torch.arange), staticmethod(torch.sigmoid), staticmethod(torch.erf)

    def __init__(self, number: int) -> None:
        self.number = number

    def program_id(self, axis: int) -> int:
        assert axis == 0
        return self.number

    def load(self, address: Address, mask: Tensor) -> Tensor:
        read = torch.full(mask.shape, torch.nan)  # what stands in masked places is anything
        read[mask] = address.numbers[address.here[mask]]
        return read

    def store(self, address: Address, numbers: Tensor, mask: Tensor) -> None:
        address.numbers[address.here[mask]] = numbers[mask]


@pytest.mark.parametrize("length", [1, 8, 20])
def test_its_lines_compute_what_the_page_does(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    x, y = 4 * torch.randn(2, length, generator=torch.Generator().manual_seed(0))
    output = torch.full((length,), torch.nan)
    for number in range((length + 7) // 8):
        monkeypatch.setattr(kernel, "tl", Language(number))
        kernel.gated_tile(Address(x), Address(y), Address(output), length, 8)
    torch.testing.assert_close(output, gated()(x, y))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning")  # Triton 3.9 announces what 3.10 will do
@pytest.mark.parametrize("shape", [(1,), (1024,), (3, 1025), (4096, 2048)])
def test_it_computes_what_the_page_does(shape: tuple[int, ...]) -> None:
    pytest.importorskip("triton")
    x, y = 4 * torch.randn(2, *shape, device="cuda")
    torch.testing.assert_close(kernel.gated(x, y), gated()(x, y), rtol=1e-5, atol=1e-5)
