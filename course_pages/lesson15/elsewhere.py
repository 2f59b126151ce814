"""Other libraries: file formats of pyarrow, restarts of torchdata and datasets, workers of a DataLoader.

A library that is not installed is not imported; its results elsewhere are in `STORED`, and are marked.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SAMPLES = 40
STORED = {
    ("torchdata", 2): (0, 0, ""), ("torchdata", 4): (16, 0, ""), ("torchdata", 1): (0, 8, ""),
    ("datasets", 2): (0, 0, ""), ("datasets", 4): (16, 0, ""),
    ("datasets", 1): (24, 0, "KeyError: 'examples_iterable'"),
}  # fmt: skip
"""(library, ranks after it) → the result of `restart`, with the versions of `STORED_WITH`."""
FORMATS_STORED = {"Arrow": 932_850 / 466_195, "Parquet": 394_533 / 466_195}
"""Bytes a token of Python 3.11's manual, as `write_formats` writes it."""
ALLOCATED_STORED = {"Arrow": 0, "Parquet": 932_390}
"""Bytes that Arrow's allocator gives out, at least, while these files are open."""
STORED_WITH = {
    "torchdata": "0.11.0", "datasets": "5.2.0", "pyarrow": "26.0.1", "datasketch": "2.0.0", "distributed": "2026.8.0",
}  # fmt: skip
"""The versions behind the stored results: on Linux, with Python 3.11 and torch 2.13, in November 2026."""


def installed(library: str) -> bool:
    """Whether the library can be imported."""
    return importlib.util.find_spec(library) is not None


def named(library: str) -> str:
    """The library and its version; where it is not installed, the version behind the stored results, marked."""
    if installed(library):
        return f"{library} {version(library)}"
    return f"{library} {STORED_WITH[library]} (not installed here; stored, November 2026)"


class Stride(IterableDataset):
    """This rank's samples of an epoch: every `world_size`-th; with `asks`, dealt out to the DataLoader's workers."""

    def __init__(self, rank: int, world_size: int, asks: bool = False) -> None:
        self.mine, self.asks = range(rank, SAMPLES, world_size), asks

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info() if self.asks else None
        return iter(self.mine if worker is None else self.mine[worker.id :: worker.num_workers])


def read_by_workers(dataset: IterableDataset, workers: int) -> list[int]:
    """An epoch as PyTorch's DataLoader reads it with so many worker processes."""
    with _quiet():  # newer Pythons warn of forks beside threads
        return [int(sample) for sample in DataLoader(dataset, batch_size=None, num_workers=workers)]


def _source(library: str, rank: int, world_size: int) -> Any:
    """A rank's part of 40 samples, as the library's own documentation splits it; has `state_dict`."""
    if library == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Stride(rank, world_size), batch_size=None)
    import datasets
    from datasets.distributed import split_dataset_by_node

    whole = datasets.Dataset.from_dict({"sample": list(range(SAMPLES))}).to_iterable_dataset(num_shards=1)
    return split_dataset_by_node(whole, rank, world_size)


def restart(library: str, after: int, before: int = 2, steps: int = 8) -> tuple[int, int, str]:
    """Read `steps` samples on each rank, save each rank's state, and finish the epoch on `after` ranks.

    A rank without a state of its own takes that of rank modulo `before`. Returns the number of the 40 samples that no
    rank read, the number that were read twice, and the library's error.
    """
    done, states, said = [], [], ""
    with _quiet():
        for rank in range(before):
            source = _source(library, rank, before)
            done += [_sample(each) for each in islice(source, steps)]
            states.append(source.state_dict())
        try:
            for rank in range(after):
                source = _source(library, rank, after)
                source.load_state_dict(states[rank % before])
                done += [_sample(each) for each in source]
        except Exception as problem:  # noqa: BLE001  (any error of the library is the outcome)
            said = f"{type(problem).__name__}: {problem}"
    return SAMPLES - len(set(done)), len(done) - len(set(done)), said


def _sample(each: Any) -> int:
    return int(each["sample"] if isinstance(each, dict) else each)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the libraries' warnings, none of which is about the number of ranks, and their progress bars."""
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def write_formats(folder: Path, tokens: np.ndarray) -> dict[str, Path]:
    """Write the same tokens four ways; Arrow and Parquet only where pyarrow is installed, and uncompressed."""
    files = {"raw": folder / "manual.bin", ".npy": folder / "manual.npy"}
    tokens.astype("<u2").tofile(files["raw"])
    np.save(files[".npy"], tokens.astype("<u2"))
    if installed("pyarrow"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        files |= {"Arrow": folder / "manual.arrow", "Parquet": folder / "manual.parquet"}
        table = pa.table({"tokens": tokens.astype("<u2")})
        with pa.OSFile(str(files["Arrow"]), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        pq.write_table(table, files["Parquet"], compression="NONE")
    return files


def open_format(name: str, path: Path) -> np.ndarray:
    """The tokens as the format's usual reader opens them: a map of the file, but for Parquet, which must be decoded."""
    if name == "raw":
        return np.memmap(path, dtype="<u2", mode="r")
    if name == ".npy":
        return np.load(path, mmap_mode="r")
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all() if name == "Arrow" else pq.read_table(path)
    column = table["tokens"]
    return (column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()).to_numpy()


def allocated() -> int:
    """Bytes that Arrow's allocator has given out and not got back; 0 where pyarrow is not installed."""
    return importlib.import_module("pyarrow").total_allocated_bytes() if installed("pyarrow") else 0
