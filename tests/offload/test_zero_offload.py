"""AdamW in main memory takes the same steps, holds what it says, sends 4Ψ bytes; delayed, it applies old gradients."""

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_kit import measure
from course_lib.model.gpt import GPT
from course_lib.offload.copy_stream import CopyStream
from course_lib.offload.disk import Disk
from course_lib.offload.zero_offload import UPDATE_BYTES, OffloadedAdamW
from course_lib.predict import offload as formulas
from course_lib.train.step import train_step
from tests.offload.beside import ADAMW, BATCHES, CONFIG, Beside, Clock


def beside(inside: nn.Module, delay_from: int | None = None, way_home: float | None = None) -> Beside:
    def wrap(inside: nn.Module) -> Any:
        optimizer = OffloadedAdamW(inside, CopyStream(), CopyStream(way_home), delay_from, **ADAMW)
        return inside, optimizer, inside.state_dict

    return Beside(inside, wrap, delay_from)


class Two(nn.Module):
    """Of two layers one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x).sum()


def test_gradients_of_several_passes_add_up_and_an_unused_weight_stays() -> None:
    torch.manual_seed(0)
    beside(Two()).step(*((x,) for x in torch.randn(3, 4, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("delay_from", [None, 0, 2])
def test_each_step_is_that_of_adamw(delay_from: int | None, dtype: torch.dtype) -> None:
    both = beside(GPT(CONFIG, dtype=dtype), delay_from)
    for batch in BATCHES:
        both.step(batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_on_a_slow_way_home_do_not_hear_of_the_next_update(dtype: torch.dtype) -> None:
    """Which runs meanwhile: what travels is a copy, also where nothing is rounded."""
    model = GPT(CONFIG, dtype=dtype)
    both = beside(model, 0, 20 * sum(weight.numel() for weight in model.parameters()))
    for batch in BATCHES:
        both.step(batch)


@pytest.mark.gpu
def test_on_a_gpu_steps_stay_the_same() -> None:
    both = beside(GPT(CONFIG, dtype=torch.bfloat16).cuda())
    for inputs, targets in BATCHES:
        both.step((inputs.cuda(), targets.cuda()))


def same(ours: nn.Module, theirs: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_settle_ends_the_update_that_is_under_way() -> None:
    usual, delayed = GPT(CONFIG), GPT(CONFIG)
    optimizers = [OffloadedAdamW(usual, CopyStream(), CopyStream(), **ADAMW)]
    optimizers.append(OffloadedAdamW(delayed, CopyStream(), CopyStream(), delay_from=0, **ADAMW))
    for model, optimizer in zip((usual, delayed), optimizers):
        model(*BATCHES[0]).backward()
        optimizer.step()
    assert not same(usual, delayed)
    optimizers[1].settle()
    assert same(usual, delayed)


def test_zero_grad_forgets_what_has_left() -> None:
    """A model's `zero_grad` does not: its gradients lie in main memory."""
    ours, theirs = GPT(CONFIG), GPT(CONFIG)
    optimizer = OffloadedAdamW(ours, CopyStream(), CopyStream(), **ADAMW)
    oracle = torch.optim.AdamW(theirs.parameters(), fused=True, **ADAMW)
    for forgotten, batch in itertools.pairwise(BATCHES):
        ours(*forgotten).backward()
        optimizer.zero_grad(set_to_none=True)  # as `train_step` says it
        ours(*batch).backward()
        optimizer.step()
        train_step(theirs, oracle, batch)
        assert same(ours, theirs)


def test_the_device_keeps_two_bytes_a_parameter_and_sends_two_each_way() -> None:
    model = GPT(CONFIG, dtype=torch.bfloat16)
    psi = sum(weight.numel() for weight in model.parameters())
    out, back = CopyStream(), CopyStream()
    optimizer = OffloadedAdamW(model, out, back, **ADAMW)
    assert optimizer.held == 4 * psi
    for batch in BATCHES[:2]:
        model(*batch).backward()
        optimizer.step()
    assert optimizer.held == 12 * psi and (out.carried, back.carried) == (2 * 2 * psi, 2 * 2 * psi)
    with measure.memory(model) as record:
        model(*BATCHES[2]).backward()
        for _ in range(100):  # the copy stream lets go of the last gradient a moment after the backward pass
            if record.now.gradients == 0:
                break
            time.sleep(0.05)
    assert record.now.gradients == 0 and record.now.parameters == 2 * psi


@pytest.mark.parametrize("bytes_per_s", [1e3, 1e6])
def test_time_follows_bandwidth_and_sleeping_too_long_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, bytes_per_s: float
) -> None:
    """On a clock that oversleeps by half each time: what comes late is no later than one sleep was too long."""
    clock = Clock(monkeypatch, oversleeps=1.5)
    sizes, stream = (1000, 250, 2000, 500), CopyStream(bytes_per_s)
    gate = threading.Event()
    stream._worker.submit(gate.wait)  # all are asked for at one time
    copies = [stream.send(torch.zeros(size), torch.zeros(size)) for size in sizes]
    gate.set()
    for copy in copies:
        copy.result()
    link = 4 * sum(sizes) / bytes_per_s
    assert link <= clock.now <= link + 0.5 * 4 * max(sizes) / bytes_per_s


def test_an_update_takes_32_bytes_a_parameter_over_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, layer = Clock(monkeypatch), nn.Linear(10, 10, bias=False)
    optimizer = OffloadedAdamW(layer, CopyStream(), CopyStream(), memory_bytes_per_s=32_000)
    layer(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    assert formulas.UPDATE_BYTES == UPDATE_BYTES == 32 and clock.now == pytest.approx(100 * 32 / 32_000)


def test_senseless_arguments_are_refused(tmp_path: Path) -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=False"):
        OffloadedAdamW(frozen, CopyStream(), CopyStream())
    with pytest.raises(ValueError, match="cannot be -1"):
        OffloadedAdamW(nn.Linear(2, 2), CopyStream(), CopyStream(), delay_from=-1)
    with pytest.raises(ValueError, match="bytes_per_s"):
        CopyStream(bytes_per_s=0)
    with pytest.raises(RuntimeError, match="size"):
        CopyStream().send(torch.zeros(3), torch.zeros(4)).result()
    with pytest.raises(ValueError, match="bytes_per_s=0"):
        Disk(tmp_path, bytes_per_s=0)


@pytest.mark.timed
def test_a_paced_lane_takes_its_time_while_the_caller_goes_on() -> None:
    stream, source = CopyStream(bytes_per_s=1e6), torch.arange(50_000.0)
    into = torch.zeros(50_000)
    start = time.perf_counter()
    copies = [stream.send(source, into) for _ in range(2)]
    assert not copies[-1].done(), "send does not wait"
    for copy in copies:
        copy.result()
    assert time.perf_counter() - start >= 0.4 and torch.equal(into, source) and stream.carried == 400_000


def seconds_a_step(delay_from: int | None, memory_bytes_per_s: float | None, steps: int = 6) -> float:
    """Of a "card" that sleeps 0.1 s in each forward pass, whose processor is told how fast its memory is."""

    class Sleeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1000))

        def forward(self) -> Tensor:
            time.sleep(0.1)
            return self.weight.sum()

    model = Sleeps()
    o = OffloadedAdamW(model, CopyStream(), CopyStream(), delay_from, memory_bytes_per_s)
    start = time.perf_counter()
    for _ in range(steps):
        model().backward()
        o.step()
    o.settle()
    return (time.perf_counter() - start) / steps


@pytest.mark.timed
def test_an_update_that_is_late_hides() -> None:
    for _ in range(5):  # one of five has to show it: others may use this machine, too
        usual, late = (seconds_a_step(delay_from, 32_000 / 0.08) for delay_from in (None, 0))
        assert usual >= 0.18 and late >= 0.1
        if late < 0.85 * usual:
            return
    raise AssertionError(f"late {late:.2f} s, usual {usual:.2f} s")


@pytest.mark.timed
def test_a_late_update_begins_while_the_weights_before_it_go_home() -> None:
    """The processor needs 0.1 s, and the way home 0.1 s: in turns they would leave 0.2 s for each step."""
    taken: list[float] = []
    while not taken or (taken[-1] >= 0.85 and len(taken) < 5):  # one of five has to show it
        model = nn.Linear(10, 10, bias=False)
        o = OffloadedAdamW(model, CopyStream(), CopyStream(bytes_per_s=4000), 0, memory_bytes_per_s=32_000)
        start = time.perf_counter()
        for _ in range(6):
            model(torch.ones(1, 10)).sum().backward()
            o.step()
        taken.append(time.perf_counter() - start)
    assert min(taken) >= 0.5 and taken[-1] < 0.85, taken
