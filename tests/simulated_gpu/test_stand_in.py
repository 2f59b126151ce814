"""The stand-in itself: what a GPU promises about memory, devices and copies, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.simulated_gpu import build
from tests.simulated_gpu.cards import H100, T4, Machine

READS = ("tests/simulated_gpu/device/*", "tests/simulated_gpu/site/*")
pytestmark = pytest.mark.simulated


def run(program: str, machine: Machine = T4, **environment: str) -> str:
    """What a program prints, and how it ends, on such a machine."""
    command = [sys.executable, "-c", "import torch\n" + dedent(program)]
    around = machine.environment(build.built()) | environment
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], env=around, capture_output=True, text=True)
    return ran.stdout + ran.stderr


def test_bytes_come_in_blocks_of_512_and_end_with_the_card() -> None:
    said = run("""
        x = torch.ones(1, device="cuda"), torch.ones(129, device="cuda")
        print(torch.cuda.memory_allocated())
        del x
        print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
        y = torch.ones(200, device="cuda")
        y.untyped_storage().resize_(0)
        print(torch.cuda.memory_allocated())
        torch.cuda.set_per_process_memory_fraction(0.5)
        torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
    """)
    assert said.splitlines()[:3] == ["1536", "0 1536", "0"]
    assert "OutOfMemoryError: CUDA out of memory" in said and "simulated" in said


WRONG = {
    "torch.ones(2, device='cuda') + torch.ones(2)": "all tensors to be on the same device",
    "torch.ones(2, device='cuda:0') + torch.ones(2, device='cuda:1')": "cuda:0 and cuda:1",
    "torch.ones(2, device='cuda:2')": "invalid device ordinal",
    "torch.cuda.set_device(2)": "invalid device ordinal",
    "torch.ones(2, device='cuda').numpy()": "can't convert cuda",
    "torch.rand(2, device='cuda', generator=torch.Generator())": "'cuda' device type for generator",
    "torch.mm(torch.ones(2, 2, device='cuda'), torch.ones(2, 2))": "same device",
}


def test_a_wrong_device_is_refused() -> None:
    said = run(f"""
        for line in {list(WRONG)}:
            try:
                print(eval(line))
            except Exception as error:
                print(str(error).splitlines()[0])
    """, T4.times(2)).splitlines()  # fmt: skip
    assert len(said) == len(WRONG)
    assert [line for line, words in zip(said, WRONG.values()) if words not in line] == []


def test_a_copy_that_nobody_waited_for_holds_rubbish() -> None:
    said = run("""
        x, here = torch.arange(3.0, device="cuda"), torch.empty(3, pin_memory=True)
        for wait in (lambda: None, torch.cuda.synchronize, torch.cuda.current_stream().synchronize, x.sum().item):
            here.copy_(x, non_blocking=True)
            x.add_(1)  # which the copy does not see
            wait()
            print(here.tolist())
        print(torch.empty(3).copy_(x, non_blocking=True).tolist())
    """)
    rubbish, *waited = said.splitlines()
    assert rubbish == "[nan, nan, nan]"
    assert waited == ["[1.0, 2.0, 3.0]", "[2.0, 3.0, 4.0]", "[3.0, 4.0, 5.0]", "[4.0, 5.0, 6.0]"]


def test_a_seed_counts_and_without_one_each_process_has_its_own() -> None:
    drawn = "print(torch.rand(3, device='cuda').tolist())"
    assert run(drawn) != run(drawn)
    assert run("torch.manual_seed(1)\n" + drawn) == run("torch.manual_seed(1)\n" + drawn)


def test_a_card_says_that_it_is_simulated_and_what_it_can() -> None:
    asked = "print(torch.cuda.get_device_name(), torch.cuda.is_bf16_supported(including_emulation=False))"
    assert (run(asked), run(asked, H100)) == ("simulated T4 False\n", "simulated H100 True\n")


def test_no_gpu_is_there_without_the_variable_or_where_it_is_hidden() -> None:
    asked = "print(torch.cuda.is_available(), torch.cuda.device_count())"
    assert run(asked) == "True 1\n"
    assert run(asked, SIMULATED_GPU="") == run(asked, CUDA_VISIBLE_DEVICES="") == "False 0\n"


def test_a_machine_that_cannot_be_made_runs_nothing() -> None:
    said = run("print('here')", SIMULATED_GPU_LIBRARY="/nowhere.so")
    assert "nowhere.so" in said and "here" not in said.splitlines()


OF_RANKS = {
    "dist.get_backend()": "cpu:gloo,cuda:nccl",
    "dist.group.WORLD._get_backend(here).name()": "nccl",
    "str(here)": "cuda:0",
    "[x := torch.ones(2, device=here), dist.all_reduce(x), x.tolist()][-1]": "[2.0, 2.0]",
    "[x := torch.ones(2, device=here), dist.all_reduce(x, dist.ReduceOp.AVG), x.tolist()][-1]": "[1.0, 1.0]",
    "dist.all_reduce(torch.ones(2, 3, device=here).t())": "Tensors must be contiguous",
    "dist.all_reduce(torch.ones(2, device=here).short())": "not supported for NCCL",
    "dist.all_reduce(torch.ones(2, device=here).int(), dist.ReduceOp.BAND)": "Cannot use ReduceOp.BAND",
    "late(as_one=True)": "done",  # a batch uses the communicator of all
    "late(as_one=False)": "rank 0 waits in isend",  # of a first message the host waits for the other rank
    "dist.all_reduce(torch.ones(2, device='cuda:0'))": "Duplicate GPU detected",
    "dist.all_reduce(torch.ones(2), group=dist.new_group(backend='nccl'))": "No backend type associated",
}
RANKS = """
    import torch
    import torch.distributed as dist
    from course_kit import ranks

    def late(as_one):
        message, other = torch.ones(1, device=ranks.device()), 1 - dist.get_rank()
        verb = dist.irecv if dist.get_rank() else dist.isend
        dist.barrier()
        if dist.get_rank():
            dist.barrier()
        works = dist.batch_isend_irecv([dist.P2POp(verb, message, other)]) if as_one else [verb(message, other)]
        if not dist.get_rank():
            dist.barrier()
        works[0].wait()
        return "done"

    def call(expression):
        return eval(expression, {"torch": torch, "dist": dist, "here": ranks.device(), "late": late})

    if __name__ == "__main__":
        for expression in EXPRESSIONS:
            try:
                print(ranks.run(call, expression, world_size=2, timeout_s=10)[0])
            except Exception as error:
                print(str(error).replace("\\n", " "))
"""


def test_groups_of_ranks_are_nccls(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(dedent(RANKS).replace("EXPRESSIONS", repr(list(OF_RANKS))), "utf-8")
    around = T4.times(2).environment(build.built())
    ran = subprocess.run([sys.executable, program], env=around, capture_output=True, text=True)
    said = ran.stdout.splitlines()
    assert len(said) == len(OF_RANKS), ran.stderr
    assert [line for line, words in zip(said, OF_RANKS.values()) if words not in line] == []
