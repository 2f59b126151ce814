"""What autograd holds for the backward pass, counted by the tests' own few lines and not by `course_kit.measure`."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class SavedBytes(saved_tensors_hooks):
    """A context manager: bytes of the different storages that autograd holds, parameters not counted.

    Attributes:
        now: bytes held at this moment.
        peak: the most that `now` has been.
    """

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self.parameters = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self.holders: Counter[int] = Counter()
        self.now = self.peak = 0
        super().__init__(lambda tensor: Held(tensor.detach(), self), lambda held: held.tensor)

    def __enter__(self) -> SavedBytes:  # type: ignore[override]
        super().__enter__()
        return self


class Held:
    """One saved tensor; its storage counts from the first holder to the last."""

    def __init__(self, tensor: Tensor, ledger: SavedBytes) -> None:
        self.tensor, self.ledger = tensor, ledger
        self.address = tensor.untyped_storage().data_ptr()
        self.nbytes = 0 if self.address in ledger.parameters else tensor.untyped_storage().nbytes()
        if ledger.holders[self.address] == 0:
            ledger.now += self.nbytes
            ledger.peak = max(ledger.peak, ledger.now)
        ledger.holders[self.address] += 1

    def __del__(self) -> None:
        self.ledger.holders[self.address] -= 1
        if self.ledger.holders[self.address] == 0:
            self.ledger.now -= self.nbytes


def gradients(module: torch.nn.Module) -> list[Tensor]:
    """Copies of the gradients of all parameters, and then none are left."""
    copies = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad(set_to_none=True)
    return copies


def same(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> bool:
    """Whether as many tensors are equal, bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def through_a_file(value: Any) -> Any:
    """The value, saved and loaded again."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
