"""A model in files takes the steps of one that is not, holds a unit or two, and survives what may befall files."""

import dataclasses
import errno
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_kit import measure, ranks
from course_kit.ranks import RankFailure
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.text import Batch
from course_lib.offload import disk as disk_module
from course_lib.offload.disk import Disk, bandwidth
from course_lib.offload.on_disk import DiskOffloadedModel
from course_lib.train.recompute import recompute
from tests.offload.beside import ADAMW, BATCHES, CONFIG, Beside


def take(model: DiskOffloadedModel, batches: list[Batch]) -> list[float]:
    losses = []
    for batch in batches:
        loss = model(*batch)
        loss.backward()
        model.step()
        losses.append(loss.item())
    return losses


def beside(folder: Path, inside: nn.Module, prefetch: bool = True) -> Beside:
    def wrap(inside: nn.Module) -> Any:
        model = DiskOffloadedModel(inside, Disk(folder), prefetch, **ADAMW)
        return model, model, model.whole_state_dict

    return Beside(inside, wrap)


class Recomputed(nn.Module):
    """Blocks whose forward pass runs again inside of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = recompute(block, x).tanh()
        return x.square().mean()


class Branches(nn.Module):
    """Two blocks, of which one is used, and a frozen scale."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.blocks[0](x) * self.scale).square().mean()


class Twice(nn.Module):
    """A block that is used twice in a pass, the second time perhaps only half of it."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole, self.blocks = whole, nn.ModuleList([Half()])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](self.blocks[0](x, self.whole), True).square().mean()


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, whole: bool) -> Tensor:
        return self.two(self.one(x)) if whole else self.one(x)


@pytest.mark.parametrize("kind", [Recomputed, Branches, lambda: Twice(True)], ids=["recomputed", "branches", "twice"])
def test_each_step_is_that_of_adamw(tmp_path: Path, kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    both = beside(tmp_path, kind())
    for x in torch.randn(3, 2, 4).unbind():
        both.step((x,))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("prefetch", "dtype"), [(True, torch.float32), (False, torch.float32), (True, torch.bfloat16)])
def test_so_is_that_of_a_gpt(tmp_path: Path, tied: bool, prefetch: bool, dtype: torch.dtype) -> None:
    """Also of the sum of several losses."""
    both = beside(tmp_path, GPT(dataclasses.replace(CONFIG, tied=tied), dtype=dtype), prefetch)
    for batch in BATCHES:
        both.step(batch)
    for pair in itertools.pairwise(BATCHES[:3]):
        both.step(*pair)


def test_a_unit_is_updated_once_in_a_step_or_not_at_all(tmp_path: Path) -> None:
    both = beside(tmp_path, Twice(False))
    with pytest.raises(ValueError, match="unit 1 was updated, and has got a gradient again"):
        both.model(torch.randn(2, 4)).backward()
    with pytest.raises(ValueError, match="nothing of it counts"):
        both.ours.step()
    both.compare()


@pytest.mark.parametrize("then", ["step", "go on"])
def test_a_backward_pass_that_broke_off_never_was(tmp_path: Path, then: str) -> None:
    inside = GPT(CONFIG)
    both = beside(tmp_path, inside)
    both.step(BATCHES[0])

    def fail(_: Tensor) -> None:
        raise KeyError("in the middle")

    hook = inside.blocks[0].register_forward_hook(lambda _, __, y: y.register_hook(fail) and None)
    with pytest.raises(KeyError):
        both.model(*BATCHES[3]).backward()
    hook.remove()
    if then == "go on":
        both.step(BATCHES[1])
    else:
        with pytest.raises(ValueError, match="nothing of it counts"):
            both.ours.step()
        both.compare()


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    model = DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path), **ADAMW)
    take(model, BATCHES[:1])
    (victim,) = tmp_path.glob("unit2.weights.*")
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=rf"{victim.name} has \d+ bytes, where \d+ were committed|bytes were committed"
    ):
        model(*BATCHES[1])
    with pytest.raises(ValueError, match="the copy was cut"):
        Disk(tmp_path)
    victim.unlink()
    with pytest.raises(ValueError, match="is not there"):
        Disk(tmp_path)


def test_vectors_of_any_size_come_back(tmp_path: Path) -> None:
    disk, sizes = Disk(tmp_path), (0, 1, 4096, 2**20, 2**20 + 3)
    vectors = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    for number, vector in enumerate(vectors):
        disk.start_write(str(number), vector)
    disk.commit()
    for number, vector in enumerate(vectors):
        into = torch.empty_like(vector)
        disk.start_read(str(number), into).result()
        assert torch.equal(into, vector)
    with pytest.raises(ValueError, match="has no 'seven', but '0'"):
        disk.start_read("seven", torch.empty(1))
    with pytest.raises(ValueError, match="8 were asked for"):
        disk.start_read("1", torch.empty(2))


def test_a_read_comes_from_the_disk_and_not_from_the_page_cache(tmp_path: Path) -> None:
    """The system counts what a process makes it fetch; the file's pages are in its cache when somebody has read it."""
    path, vector = tmp_path / "vector", torch.randint(256, (2**22,), dtype=torch.uint8)
    if not hasattr(os, "posix_fadvise") or not Path("/proc/self/io").exists():
        pytest.skip("the system neither drops pages nor counts what it fetches")
    start = _moved("write_bytes")
    disk_module._write_file(path, vector)
    if _moved("write_bytes") - start < vector.nbytes:
        pytest.skip("the folder for temporary files lies on no disk")
    for others in (0, 1):
        for _ in range(others):
            path.read_bytes()
        start, into = _moved("read_bytes"), torch.empty_like(vector)
        disk_module._read_file(path, into)
        assert _moved("read_bytes") - start >= vector.nbytes and torch.equal(into, vector)
    path.read_bytes()
    start = _moved("read_bytes")
    path.read_bytes()
    assert _moved("read_bytes") - start < vector.nbytes, "in the usual way, the second time is no disk"


def _moved(what: str) -> int:
    """Bytes that this process has made the system write to disks, or fetch from them."""
    (line,) = (line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1])


def test_bandwidth_is_that_of_a_file(tmp_path: Path) -> None:
    measured = bandwidth(tmp_path, 2**22)
    assert min(measured) > 1e5 and not list(tmp_path.iterdir())


def test_a_folder_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path / "whole"), **ADAMW)
    losses = take(whole, BATCHES[:5])
    take(DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path / "parts"), **ADAMW), BATCHES[:2])
    again = DiskOffloadedModel(GPT(CONFIG, seed=7), Disk(tmp_path / "parts"), **ADAMW)
    assert again.steps == 2 and take(again, BATCHES[2:5]) == losses[2:]


def test_a_step_reads_16_bytes_a_parameter_and_writes_14(tmp_path: Path) -> None:
    inside, disk = GPT(CONFIG, dtype=torch.bfloat16), Disk(tmp_path)
    blocks, psi = (sum(p.numel() for p in part.parameters()) for part in (inside.blocks, inside))
    model = DiskOffloadedModel(inside, disk, **ADAMW)
    assert disk.written_bytes == 14 * psi
    read = disk.read_bytes
    take(model, BATCHES[:1])
    assert disk.written_bytes == 28 * psi
    assert disk.read_bytes - read == 16 * blocks + 14 * (psi - blocks) + 2 * (psi - blocks), "and the root's again"


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    model = DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path), **ADAMW)
    with pytest.raises(ValueError, match="there was none"):
        model.step()
    model(*BATCHES[0]).backward()
    with pytest.raises(ValueError, match="second backward pass"):
        model(*BATCHES[0]).backward()
    other = GPTConfig(layers=2, width=16, heads=2, vocab_size=256, context=16)
    with pytest.raises(ValueError, match="has another model"):
        DiskOffloadedModel(GPT(other), Disk(tmp_path), **ADAMW)
    with pytest.raises(ValueError, match="no parameter to train"):
        DiskOffloadedModel(nn.Linear(1, 1).requires_grad_(False), Disk(tmp_path / "other"))
    mixed = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match="dtypes"):
        DiskOffloadedModel(mixed, Disk(tmp_path / "mixed"))


def _kinds(module: nn.Module) -> str:
    return f"{module[0].weight.dtype} {tuple(module[0].weight.shape)} in unit 0"  # type: ignore[index]


@pytest.mark.parametrize("other", [nn.Linear(4, 6), nn.Linear(6, 4, dtype=torch.bfloat16), nn.Linear(8, 4)])
def test_another_models_disk_is_refused_with_the_parameter_that_differs(tmp_path: Path, other: nn.Linear) -> None:
    first, second = nn.Sequential(nn.Linear(6, 4)), nn.Sequential(other)
    DiskOffloadedModel(first, Disk(tmp_path), **ADAMW)
    with pytest.raises(ValueError) as refused:
        DiskOffloadedModel(second, Disk(tmp_path), **ADAMW)
    assert f"{tmp_path} has another model" in str(refused.value)
    assert f"differ: found {_kinds(first)}, needed {_kinds(second)}" in str(refused.value)
    DiskOffloadedModel(nn.Sequential(nn.Linear(6, 4)), Disk(tmp_path), **ADAMW)


def test_a_folder_that_does_not_name_its_model_is_refused(tmp_path: Path) -> None:
    take(DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path), **ADAMW), BATCHES[:1])
    manifest = tmp_path / "manifest.json"
    stored = json.loads(manifest.read_text())
    del stored["facts"]["_kinds"]
    manifest.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="has another model"):
        DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path), **ADAMW)


def test_messages_tell_facts_without_the_long_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    disk.commit(steps=3, _kinds=["float32 (4, 6)"] * 100)

    def no_room(path: Path, vector: Tensor) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_module, "_write_file", no_room)
    disk.start_write("new", torch.zeros(1))
    with pytest.raises(OSError, match=r'still has the step before, with \{"steps": 3\}. Writing'):
        disk.commit(steps=4)
    assert Disk(tmp_path).facts == {"steps": 3, "_kinds": ["float32 (4, 6)"] * 100}


def test_a_slow_disk_holds_up_its_writer_and_not_the_whole_model(tmp_path: Path) -> None:
    disk = Disk(tmp_path, bytes_per_s=1e7)
    with measure.memory() as record:
        for number in range(12):
            disk.start_write(f"v{number}", torch.zeros(25_000))  # 0.01 s
        disk.commit()
    assert record.peak.total <= 4 * 100_000, "two are written, one waits for its turn, one is made"


def test_weights_in_memory_do_not_grow_with_the_blocks(tmp_path: Path) -> None:
    peaks = {}
    for layers in (4, 8):
        inside = GPT(GPTConfig(layers=layers, width=16, heads=2, vocab_size=256, context=16))
        unit = sum(p.nbytes for p in inside.blocks[0].parameters())
        root = sum(p.nbytes for p in inside.parameters()) - layers * unit
        model = DiskOffloadedModel(inside, Disk(tmp_path / str(layers)), **ADAMW)
        take(model, BATCHES[:1])
        with measure.memory(model) as record:
            loss = model(*BATCHES[1])
            loss.backward()
            model.step()
        held = max(record.timeline["parameters"])
        nothing = 4 * (layers + 1)  # the NaN of each unit
        assert held <= root + 2 * unit + nothing
        peaks[layers] = held - nothing
    assert peaks[4] == peaks[8]


def die_in_the_third_step(folder: Path, point: int) -> None:
    """In a process of its own: it ends in the middle of a file, or just before the step counts."""
    model = DiskOffloadedModel(GPT(CONFIG), Disk(folder), **ADAMW)
    take(model, BATCHES[:2])
    write, left = disk_module._write_file, point

    def last_words(path: Path, vector: Tensor) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            path.write_bytes(b"half")
            os._exit(9)
        write(path, vector)

    disk_module._write_file = last_words
    if point == 8:
        os.replace = lambda *names: os._exit(9)
    take(model, BATCHES[2:3])


def test_a_step_that_was_not_committed_never_was(tmp_path: Path) -> None:
    """A process that dies at one of several points of a step; what it leaves goes on like one that nobody killed."""
    losses = take(DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path / "whole"), **ADAMW), BATCHES[:5])
    for point in (0, 3, 8):
        folder = tmp_path / str(point)
        with pytest.raises(RankFailure, match="exit code 9"):
            ranks.run(die_in_the_third_step, folder, point, world_size=1)
        again = DiskOffloadedModel(GPT(CONFIG), Disk(folder), **ADAMW)
        assert again.steps == 2 and take(again, BATCHES[2:5]) == losses[2:]
        assert len(list(folder.iterdir())) == 9, "four units with two files each, and the manifest"


def test_a_full_disk_loses_the_step_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = take(DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path / "whole"), **ADAMW), BATCHES[:5])
    model = DiskOffloadedModel(GPT(CONFIG), Disk(tmp_path / "full"), **ADAMW)
    take(model, BATCHES[:2])

    def no_room(path: Path, vector: Tensor) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(disk_module, "_write_file", no_room)
        with pytest.raises(OSError, match="this step was not written.*step before.*as much room again") as raised:
            take(model, BATCHES[2:3])
    assert raised.value.errno == errno.ENOSPC and model.steps == 2
    assert take(model, BATCHES[2:5]) == losses[2:], "once there is room, training goes on"
