"""A model whose AdamW works elsewhere, and beside it the same under AdamW on fp32 masters in plain sight."""

import copy
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib.model import text
from course_lib.model.gpt import GPTConfig
from course_lib.offload import copy_stream, disk, zero_offload

ADAMW: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1}
CONFIG = GPTConfig(layers=3, width=16, heads=2, vocab_size=256, context=16)
BATCHES = [text.stories(0).batch(seed=0, step=step, rank=0, batch_size=4, context=16) for step in range(6)]


class Clock:
    """Nobody waits: whoever sleeps sets it forward. So times are numbers, however fast the machine is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, oversleeps: float = 1.0) -> None:
        self.now, self.oversleeps, self._lock = 0.0, oversleeps, threading.Lock()
        mine = SimpleNamespace(perf_counter=lambda: 100 + self.now, sleep=self.sleep)
        for module in (disk, copy_stream, zero_offload):
            monkeypatch.setattr(module, "time", mine)

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now += self.oversleeps * seconds


class Beside:
    """Both take the same steps, to the bit.

    Args:
        wrap: the model → what is called, what has `step`, and a function that returns all weights.
        delay_from: the step from which on gradients are applied a step late; None for never.
        loss_of: what the model returns → its loss.
    """

    def __init__(
        self,
        inside: nn.Module,
        wrap: Callable[[Any], Any],
        delay_from: int | None = None,
        loss_of: Callable[[Any], Tensor] = lambda loss: loss,
    ) -> None:
        self.oracle, self.loss_of, self.delay_from, self.steps = copy.deepcopy(inside), loss_of, delay_from, 0
        self.model, self.ours, self.state = wrap(inside)
        self.weights = [weight for weight in self.oracle.parameters() if weight.requires_grad]
        self.masters = [weight.detach().cpu().float().clone().requires_grad_() for weight in self.weights]
        self.adamw = torch.optim.AdamW(self.masters, fused=True, **ADAMW)
        self.waiting: list[list[Tensor | None]] = []

    def step(self, *batches: Any) -> None:
        """On the sum of the losses of several passes."""
        pairs = ((self.model, lambda loss: loss), (self.oracle, self.loss_of))
        losses = [torch.stack([loss_of(each(*batch)) for batch in batches]).sum() for each, loss_of in pairs]
        for loss in losses:
            loss.backward()
        self.ours.step()
        self.waiting.append([None if w.grad is None else w.grad.cpu().float() for w in self.weights])
        self.oracle.zero_grad()
        late = self.delay_from is not None and self.steps >= self.delay_from
        while len(self.waiting) > late:
            for master, gradient in zip(self.masters, self.waiting.pop(0), strict=True):
                master.grad = gradient
            self.adamw.step()
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                weight.copy_(master)
        self.steps += 1
        assert torch.equal(*losses), f"losses of step {self.steps}: {losses}"
        self.compare()

    def compare(self) -> None:
        """Every weight."""
        state = self.state()
        for name, value in self.oracle.state_dict().items():
            assert torch.equal(state[name], value), f"{name} differs by {(state[name] - value).abs().max():.1e}"
