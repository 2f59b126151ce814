"""Memory of a training step by owner, at every moment of the step.

    with measure.memory(model, optimizer) as record:
        train_step(model, optimizer, batch)

    record.peak            # bytes by category at the worst moment
    record.largest(5)      # the blocks that made it so

The peak is a maximum over time and not a sum over categories: gradients and activations are rarely large at the same
moment. Hence a record keeps lifetimes (`tracker.py`) and owners (`owners.py`), and this file draws up the account.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.measure.owners import Owners
from course_kit.measure.storages import LargestStorages, LiveStorage, TrackedStorage, line_text, tensors_in
from course_kit.measure.tracker import Phase, Tracker
from course_kit.tables import Tabular
from course_kit.units import Bytes


@contextmanager
def memory(
    model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None,
    inputs: Tensor | tuple[Tensor, ...] | list[Tensor] = (), *, lines: bool = False,
) -> Iterator[MemoryRecord]:  # fmt: skip
    """Record the live bytes of everything that PyTorch computes inside the `with` block.

    Counted are all storages (each once, however many tensors view it) of the model, its gradients, its buffers, the
    optimizer's state and `inputs` from the start; a model or optimizer that is not given here, from the start as soon
    as one calls it; any other tensor from before, as soon as an operation reads it; and everything that is made inside.
    Not seen are memory that a kernel takes and returns within one operation, and the allocator's reserve (on a GPU
    `record.allocator` has both). Tensors that another `saved_tensors_hooks` packs inside (as `torch.utils.checkpoint`
    does) count as temporaries.

    With `lines` each block has the line that made it, for `MemoryRecord.by_line`.

    Yields:
        The record, which can be read inside the block, too, and is closed even when the block raises.

    Raises:
        ValueError: another record is open.
    """
    if MemoryRecord.is_open:
        raise ValueError("measure.memory is already open: close that `with` block before opening another one")
    tracker = Tracker(lines)
    owners = Owners(tracker)
    record = MemoryRecord(tracker, owners)
    with ExitStack() as stack:
        stack.callback(record.close)
        if model is not None:
            owners.meet_model(model)
        if optimizer is not None:
            owners.meet_optimizer(optimizer)
        for tensor in tensors_in(inputs):
            tracker.add(tensor, from_start=True)
        tracker.row += 1
        stack.enter_context(owners.watch())
        stack.enter_context(patch.object(torch.UntypedStorage, "resize_", lambda *given: tracker.resize(*given)))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(tracker.pack, tracker.unpack))
        stack.enter_context(tracker)
        yield record


class Timeline:
    """Bytes alive by row (one for each operation) and category.

    Attributes:
        bytes: int64 array of shape (rows, 5); columns in the order of `CATEGORIES`. Row 0 is the moment of entry.
        phases: "forward", "backward", "optimizer step" with their rows.
    """

    def __init__(self, tracker: Tracker) -> None:
        end = tracker.row + 1
        change = np.zeros((end + 1, len(CATEGORIES)), dtype=np.int64)
        for storage in tracker.storages:
            for first, last, category, nbytes in storage.spans(end):
                change[first, CATEGORIES.index(category)] += nbytes
                change[last, CATEGORIES.index(category)] -= nbytes
        self.bytes = change.cumsum(axis=0)[:-1]
        self.phases = tuple(Phase(p.name, p.start, min(p.stop, end)) for p in tracker.phases)

    @property
    def peak_row(self) -> int:
        """The first row in which the most bytes were alive."""
        return int(self.bytes.sum(axis=1).argmax())

    def account(self, row: int) -> MemoryAccount:
        """The bytes alive in one row; -1 is the last."""
        return MemoryAccount(*(Bytes(n) for n in self.bytes[row]))

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, category: str) -> np.ndarray:
        """One category's bytes over all rows."""
        return self.bytes[:, CATEGORIES.index(category)]


class MemoryRecord(Tabular):
    """A record of `measure.memory`: the bytes alive at entry, at the peak, at exit and at every moment between."""

    is_open = False

    def __init__(self, tracker: Tracker, owners: Owners) -> None:
        self._tracker = tracker
        self._owners: Owners | None = owners
        self._timeline: Timeline | None = None
        self._allocated_before = Bytes(torch.cuda.memory_allocated())  # 0 where no GPU is in use
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        type(self).is_open = True
        self.allocator: Mapping[str, Bytes] = {}
        """On a GPU, the CUDA allocator's own numbers ("before", "peak", "after"). The allocator rounds blocks up to 512
        bytes, and counts memory that no operation returns: inside of kernels, and cuBLAS's workspaces (8 MiB, on Hopper
        32, for each thread that multiplies; those are two, since the backward pass has its own)."""

    def close(self) -> None:
        """End the record, as leaving the `with` block does."""
        type(self).is_open = False
        if self._owners is not None:
            self._owners.settle()
        self._tracker.close()
        self._owners = None  # a closed record keeps no model alive
        if torch.cuda.is_initialized():
            peak, after = Bytes(torch.cuda.max_memory_allocated()), Bytes(torch.cuda.memory_allocated())
            self.allocator = {"before": self._allocated_before, "peak": peak, "after": after}

    @property
    def timeline(self) -> Timeline:
        """Bytes by operation and category, up to now."""
        if self._owners is not None:
            self._owners.settle()
            return Timeline(self._tracker)
        if self._timeline is None:
            self._timeline = Timeline(self._tracker)
        return self._timeline

    @property
    def before(self) -> MemoryAccount:
        """The bytes alive at entry."""
        return self.timeline.account(0)

    @property
    def peak(self) -> MemoryAccount:
        """The bytes alive at the moment with the most."""
        timeline = self.timeline
        return timeline.account(timeline.peak_row)

    @property
    def peak_phase(self) -> str:
        """The phase in which the peak occurred: "forward", "backward", "optimizer step" or ""."""
        timeline = self.timeline
        row = timeline.peak_row
        return next((p.name for p in timeline.phases if p.start <= row < p.stop), "")

    @property
    def now(self) -> MemoryAccount:
        """The bytes alive now; after the `with` block, at its end."""
        return self.timeline.account(-1)

    after = now
    """The bytes alive at exit: `now`, of a closed record."""

    def end_of(self, phase: str, occurrence: int = 0) -> MemoryAccount:
        """The bytes alive when a phase ended, all temporaries of its last operation gone.

        Args:
            phase: "forward", "backward" or "optimizer step".
            occurrence: number of the phase, from 0, when the record holds several steps; -1 is the last.

        Raises:
            ValueError: the record has no such phase.
        """
        timeline = self.timeline
        stops = [p.stop for p in timeline.phases if p.name == phase]
        if not -len(stops) <= occurrence < len(stops):
            seen = ", ".join(p.name for p in timeline.phases) or "none"
            raise ValueError(f"no phase {phase!r} number {occurrence} in this record; it has: {seen}")
        return timeline.account(stops[occurrence] - 1)

    def largest(self, n: int = 5, at: str = "peak") -> LargestStorages:
        """The `n` largest blocks alive at the "peak", or "now".

        Raises:
            ValueError: `at` is neither.
        """
        blocks = [
            LiveStorage(storage.label, tuple(storage.shape), storage.dtype, category, nbytes)
            for storage, category, nbytes in self._alive(at)
        ]
        return LargestStorages(sorted(blocks, key=lambda block: -block.bytes)[:n])

    def by_line(self, at: str = "peak") -> dict[str, Bytes]:
        """Bytes at the "peak" or "now" by the line that made them: {"line 7 of add: kept = x.clone()": Bytes(4096)}.

        The lines, those with the most bytes first, are outside of PyTorch and the course. Blocks from before the record
        have no line, and are left out.

        Raises:
            ValueError: `at` is neither.
        """
        found: Counter[tuple[str, int, str]] = Counter()
        for storage, _, nbytes in self._alive(at):
            if storage.line:
                found[storage.line] += nbytes
        return {line_text(*line): Bytes(nbytes) for line, nbytes in found.most_common()}

    def _alive(self, at: str) -> Iterator[tuple[TrackedStorage, str, Bytes]]:
        """The blocks alive at the "peak", or "now", with category and size."""
        if at not in ("peak", "now"):
            raise ValueError(f'at={at!r}: choose "peak" or "now"')
        timeline = self.timeline
        row = timeline.peak_row if at == "peak" else len(timeline) - 1
        for storage in self._tracker.storages:
            for first, last, category, nbytes in storage.spans(len(timeline)):
                if first <= row < last:
                    yield storage, category, Bytes(nbytes)

    @property
    def lifetimes(self) -> list[tuple[int, int | None, int]]:
        """(born, died, bytes) of every block, in rows of the timeline; `died` is None for a block still alive.

        `predict.CachingAllocator.replay` reads this list. A resized block counts with its largest size.
        """
        return [(s.born, s.died, max(nbytes for _, nbytes in s.sizes)) for s in self._tracker.storages]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        timeline = self.timeline
        peak = f"peak ({self.peak_phase})" if self.peak_phase else "peak"
        accounts = {"at entry": self.before}
        if any(p.name == "forward" for p in timeline.phases):
            accounts["after forward"] = self.end_of("forward", -1)
        accounts |= {peak: self.peak, "at exit" if self._owners is None else "now": self.now}
        rows = [[name, *(f"{n:.2MiB}" for n in (*a.values(), a.total))] for name, a in accounts.items()]
        return ["alive", *CATEGORIES, "total"], rows
