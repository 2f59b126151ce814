"""The function that a notebook cell runs on its ranks, unchanged under torchrun with two agents ("machines")."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from course_kit import ranks
from course_lib.parallel import train

SCRIPT = """
import sys

import torch
import torch.distributed as dist
from course_kit import ranks

def mean_rank(offset):
    x = torch.full((3,), float(dist.get_rank() + offset), device=ranks.device())
    dist.all_reduce(x)
    return (x / dist.get_world_size()).tolist()

if __name__ == "__main__":
    ranks.init()
    line = f"rank {dist.get_rank()} of {dist.get_world_size()}: {mean_rank(10)}\\n"
    sys.stdout.write(line)  # in one piece: ranks share a pipe, and print may write the end of a line apart
    dist.destroy_process_group()
"""


def printed(program: list[str]) -> list[str]:
    """Lines of two agents ("machines") with two ranks each, which meet at a store of this process.

    So no port is asked for that somebody else may have taken meanwhile.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-id", "test"]
    command += ["--rdzv-conf", "is_host=false", "--local-addr", "127.0.0.1", *program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # two "machines" would take the same GPUs, which NCCL refuses
    pipe = subprocess.PIPE
    agents = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) for _ in range(2)]
    outputs = [agent.communicate(timeout=100) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    return [line for out, _ in outputs for line in out.splitlines()]


def test_the_same_function_on_two_agents(tmp_path: Path) -> None:
    script = tmp_path / "mean_rank.py"
    script.write_text(SCRIPT)
    namespace = {"__name__": "notebook"}
    exec(SCRIPT, namespace)
    here = ranks.run(namespace["mean_rank"], 10, world_size=4)  # type: ignore[arg-type]
    assert here == [[11.5] * 3] * 4
    assert sorted(printed([str(script)])) == [f"rank {rank} of 4: [11.5, 11.5, 11.5]" for rank in range(4)]


@pytest.mark.nightly
@pytest.mark.parametrize("cut", ["--pipeline 2 --data 2 --zero 1", "--data 2 --tensor 2 --zero 2"])
def test_one_script_trains_over_the_grid_that_it_is_told(cut: str) -> None:
    """Four ranks on two agents reach the loss of one device in each step; the test trains that one by itself."""
    said = [*cut.split(), "--steps", "4", "--micro-batches", "2", "--dtype", "float64"]
    lines = printed(["-m", "course_lib.parallel.train", *said, "--oracle"])
    given = train.arguments().parse_args(said)
    oracle = train.train_alone(given.steps, given.batch_size, getattr(torch, given.dtype))
    assert [line.split()[:4] for line in lines] == [
        ["step", str(step), "loss", f"{loss:.6f}"] for step, loss in enumerate(oracle)
    ]
    assert all(abs(float(line.split()[-1])) < 1e-10 for line in lines)
    assert oracle[-1] < oracle[0] - 0.1
