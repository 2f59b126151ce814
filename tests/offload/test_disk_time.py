"""A model in files takes the time that its bytes take, on a disk of any bandwidth, and reads ahead of use."""

import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from course_lib import predict
from course_lib.model.gpt import GPT
from course_lib.offload import disk as disk_module
from course_lib.offload.disk import Disk
from course_lib.offload.on_disk import DiskOffloadedModel
from tests.offload.beside import ADAMW, BATCHES, CONFIG, Clock
from tests.offload.test_on_disk import take


@pytest.mark.parametrize("bytes_per_s", [1e5, 1e7])
def test_time_follows_bandwidth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_s: float) -> None:
    """A device that computes in no time waits for the disk alone: the bytes of a step by the bytes a second."""
    clock, inside = Clock(monkeypatch), GPT(CONFIG, dtype=torch.bfloat16)
    psi = sum(p.numel() for p in inside.parameters())
    model = DiskOffloadedModel(inside, Disk(tmp_path, bytes_per_s=bytes_per_s), **ADAMW)
    assert clock.now == pytest.approx(14 * psi / bytes_per_s)
    for batch in BATCHES[:3]:
        start = clock.now
        take(model, [batch])
        assert clock.now - start == pytest.approx((16 + 14) * psi / bytes_per_s), "read and written"


@pytest.mark.parametrize("ratio", [0.25, 1, 4])
def test_time_follows_arithmetic_intensity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """A device of 1 FLOP/s, a disk `ratio` times as fast as it needs: between no overlap and all of it.

    The formula is the one without overlap. Here it is exact but for what sleeps at the moment when somebody computes.
    """
    clock, inside, tokens = Clock(monkeypatch), GPT(CONFIG, dtype=torch.bfloat16), 4 * 16
    psi = sum(p.numel() for p in inside.parameters())
    intensity = 6 * psi * tokens / (30 * psi)
    model = DiskOffloadedModel(inside, Disk(tmp_path, bytes_per_s=ratio / intensity), **ADAMW)
    for unit in (inside, *inside.blocks):
        unit.register_forward_pre_hook(lambda *_: clock.sleep(6 * psi * tokens / 4))
    start = clock.now
    take(model, BATCHES[:1])
    efficiency = 6 * psi * tokens / (clock.now - start)
    assert predict.link_efficiency(intensity, ratio / intensity, 1) - 1e-6 <= efficiency <= min(1, ratio) + 1e-6


def test_the_next_unit_is_read_while_one_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block 1 computes until the file of block 2 is being read, which nobody else has asked for."""
    inside, begun, read = GPT(CONFIG), threading.Event(), disk_module._read_file
    model, waited = DiskOffloadedModel(inside, Disk(tmp_path), **ADAMW), []

    def told(path: Path, into: Tensor) -> None:
        if path.name.startswith("unit2.weights"):
            begun.set()
        read(path, into)

    monkeypatch.setattr(disk_module, "_read_file", told)
    inside.blocks[0].register_forward_pre_hook(lambda *_: waited.append(begun.wait(60)))
    model(*BATCHES[0])
    assert waited == [True]


@pytest.mark.timed
def test_a_real_disk_is_no_faster_than_it_was_told(tmp_path: Path) -> None:
    vector, disk = torch.zeros(2**16), Disk(tmp_path, bytes_per_s=4e6)
    start = time.perf_counter()
    disk.start_write("a", vector)
    disk.start_write("b", vector)
    disk.commit()
    disk.start_read("a", vector).result()
    assert time.perf_counter() - start >= 3 * 2**18 / 4e6
