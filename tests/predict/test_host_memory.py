"""Main memory while several processes make a model: predicted, and asked of the kernel for real processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.materialize import materialize
from tests.predict.refused import refused

CONFIG = GPTConfig(layers=4, width=512, heads=8, vocab_size=2048, context=64)
PROCESSES = 3
WAYS: tuple[Literal["whole", "in turn", "meta"], ...] = ("whole", "in turn", "meta")


def own_bytes() -> int:
    """Bytes of main memory that belong to this process alone, without what was freed and not handed back yet."""
    ctypes.CDLL(None).malloc_trim(0)
    found = re.search(r"Private_Dirty:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert found
    return int(found[1]) * 1024


def make(rank: int, barrier: Any, told: Any) -> None:
    """Make the model in one of the processes, in each way; tell by how much its memory grew."""
    torch.set_num_threads(1)  # the stack of a thread would count
    GPT(replace(CONFIG, width=8))  # what Python and PyTorch take at their first model
    grown = {}
    for made in WAYS:
        before = own_bytes()
        for turn in range(PROCESSES):
            if turn == (rank if made == "in turn" else 0):
                with torch.device("meta" if made == "meta" else "cpu"):
                    model = GPT(CONFIG)
                grown[made] = own_bytes() - before
                if made == "in turn":
                    del model
            barrier.wait()
        model = None
    told.put(grown)


def test_it_is_as_many_models_as_processes() -> None:
    assert predict.host_memory(70e9, 8) == 8 * 4 * 70e9
    assert predict.host_memory(CONFIG, 8, "in turn") == 4 * predict.parameters(CONFIG)
    assert predict.host_memory(CONFIG, 8, "meta") == 0


def test_what_was_made_on_meta_takes_its_share_later() -> None:
    torch.set_num_threads(1)
    with torch.device("meta"):
        model = GPT(CONFIG)
    before = own_bytes()
    materialize(model, "cpu", torch.bfloat16)
    assert own_bytes() - before == pytest.approx(2 * predict.parameters(CONFIG), rel=0.02, abs=2**20)


@pytest.mark.nightly  # three processes start; by hand, and for one process, above
def test_it_is_what_the_kernel_counts() -> None:
    spawn = multiprocessing.get_context("spawn")  # not forked: pages that processes share are nobody's own
    barrier, told = spawn.Barrier(PROCESSES, timeout=120), spawn.Queue()
    processes = [spawn.Process(target=make, args=(rank, barrier, told)) for rank in range(PROCESSES)]
    for process in processes:
        process.start()
    grown = [told.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    for made in WAYS:
        together = max if made == "in turn" else sum  # in turn, the others have none meanwhile
        due = predict.host_memory(CONFIG, PROCESSES, made)
        assert together(each[made] for each in grown) == pytest.approx(due, rel=0.02, abs=2**20), made


test_words_and_sizes_that_do_not_exist_are_refused = refused(
    (lambda: predict.host_memory(CONFIG, 2, "twice"), "made"),  # type: ignore[arg-type]
    (lambda: predict.host_memory(CONFIG, 0), "processes"),
)
