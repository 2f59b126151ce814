"""The files for Slurm and Kubernetes: what they would start is what torchrun and the capstone understand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from course_lib import predict
from course_lib.model import hardware
from course_lib.model.gpt import GPTConfig
from course_lib.predict.planner import Cluster, Plan
from course_pages.lesson17 import capstone, machine
from course_pages.lesson17.capstone import Layout, Training

READS = ("docs/cluster/*", "docs/torchrun.md")
FOLDER = Path(__file__).parents[3] / "docs/cluster"
SLURM, KUBERNETES = FOLDER / "capstone.sbatch", FOLDER / "capstone.yaml"


def understood(words: list[str]) -> tuple[Namespace, Namespace]:
    """What torchrun's own parser and the capstone's read; the layout is one of the ranks that there are."""
    agent = get_args_parser().parse_args(words)
    assert agent.module and agent.training_script == "course_pages.lesson17.capstone"
    run = capstone.arguments().parse_args(agent.training_script_args)
    layout, training = capstone.layout_of(run), Training(Training().config, run.batch_size, run.steps)
    assert machine.is_legal(training, layout)
    assert layout.mesh.size == int(agent.nnodes) * int(agent.nproc_per_node)
    assert int(agent.nproc_per_node) % layout.tensor == 0, "tensor ranks share a machine"
    assert run.resume and run.every < run.steps
    assert agent.rdzv_backend == "c10d" and re.fullmatch(r"[\w.-]+:\d+", agent.rdzv_endpoint) and agent.rdzv_id
    return agent, run


# ---- Slurm -----------------------------------------------------------------------------------------------------------


def directives() -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)", SLURM.read_text("utf-8"), re.M))


def test_the_slurm_file_starts_one_agent_on_each_machine(tmp_path: Path) -> None:
    """Bash runs the file among stand-ins for Slurm's commands, which write down what they are asked to start."""
    asked = directives()
    assert asked["ntasks-per-node"] == "1" and "requeue" in asked and asked["open-mode"] == "append"
    stand_ins = {
        "scontrol": 'test "$*" = "show hostnames node[7-8]"; printf "node7\\nnode8\\n"',
        "srun": f'for word in "$@"; do printf "%s\\0" "$word"; done > {tmp_path}/srun.txt',
    }
    for name, script in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\nset -e\n{script}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": asked["nodes"]}
    job["SLURM_CPUS_PER_TASK"] = asked["cpus-per-task"]
    environment = job | {"SLURM_SUBMIT_DIR": "/shared", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", str(SLURM)], env=environment, check=True)
    *options, torchrun, rest = (tmp_path / "srun.txt").read_text().partition("torchrun\0")
    assert torchrun == "torchrun\0" and options == ["--kill-on-bad-exit=1\0"]
    agent, run = understood(rest.removesuffix("\0").split("\0"))
    assert agent.rdzv_endpoint == "node7:24711" and agent.rdzv_id == "4711"
    assert agent.nproc_per_node == asked["gpus-per-node"] and run.folder == Path("/shared/runs/capstone")


def test_linters_have_nothing_to_say_about_the_slurm_file() -> None:
    for linter in (["bash", "-n"], [str(Path(sys.executable).with_name("shellcheck"))]):
        result = subprocess.run([*linter, str(SLURM)], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr


# ---- Kubernetes ------------------------------------------------------------------------------------------------------


def test_a_linter_has_nothing_to_say_about_the_kubernetes_file() -> None:
    rules = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"
    command = [sys.executable, "-m", "yamllint", "--strict", "-d", rules, str(KUBERNETES)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    service, job = yaml.safe_load_all(KUBERNETES.read_text("utf-8"))
    return service, job


def problems(service: dict[str, Any], job: dict[str, Any]) -> list[str]:
    """What would keep the pods from finding each other, from starting at once, or from keeping their checkpoints."""
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    agent, run = understood(container["args"])
    host, _, port = agent.rdzv_endpoint.partition(":")
    limits, requests = (container["resources"][kind] for kind in ("limits", "requests"))
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    ports = {service["spec"]["ports"][0]["port"], container["ports"][0]["containerPort"], int(port)}
    checks = {
        "kinds": (service["apiVersion"], service["kind"], job["apiVersion"], job["kind"])
        == ("v1", "Service", "batch/v1", "Job"),
        "headless": service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"],
        "selector": service["spec"]["selector"] == {"job-name": job["metadata"]["name"]},
        "indexed": spec["completionMode"] == "Indexed",
        "all at once": spec["completions"] == spec["parallelism"] == int(agent.nnodes),
        "endpoint": host == f"{job['metadata']['name']}-0.{service['metadata']['name']}",
        "subdomain": pod["subdomain"] == service["metadata"]["name"],
        "one port": len(ports) == 1,
        "restart policy": pod["restartPolicy"] in ("Never", "OnFailure"),
        "a GPU for each rank": limits["nvidia.com/gpu"] == requests["nvidia.com/gpu"] == agent.nproc_per_node,
        "memory": limits["memory"] == requests["memory"],
        "shared folder": "persistentVolumeClaim" in volumes[mounts[str(run.folder.parent)]],
        "shared memory": volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory",
        "strings": all(isinstance(each["value"], str) for each in container["env"]),
    }
    return [name for name, holds in checks.items() if not holds]


def test_the_manifest_starts_pods_that_find_each_other() -> None:
    assert problems(*documents()) == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (["spec", "parallelism"], 1, "all at once"),
        (["spec", "completionMode"], "NonIndexed", "indexed"),
        (["metadata", "name"], "other", "endpoint"),
        (["spec", "template", "spec", "subdomain"], "elsewhere", "subdomain"),
        (["spec", "template", "spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"], "8", "a GPU"),
        (["spec", "template", "spec", "volumes", 0], {"name": "runs", "emptyDir": {}}, "shared folder"),
    ],
)
def test_a_manifest_with_a_mistake_is_found(path: list[Any], value: Any, problem: str) -> None:
    service, job = documents()
    place: Any = json.loads(json.dumps(job))
    changed = place
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert any(each.startswith(problem) for each in problems(service, changed))


def test_the_guide_names_both_files() -> None:
    guide = (FOLDER.parent / "torchrun.md").read_text("utf-8")
    assert all(f"](cluster/{path.name})" in guide for path in sorted(FOLDER.iterdir()))
    typed = re.findall(r"-m course_pages\.lesson17\.capstone (.*)", guide)
    for line in typed:
        layout = capstone.layout_of(capstone.arguments().parse_args(line.split()))
        assert f"--nproc-per-node {layout.mesh.size} -m course_pages.lesson17.capstone {line}" in guide
    assert len(typed) == 2


# ---- A line of `course plan` -----------------------------------------------------------------------------------------


def plan_for_four(**differs: Any) -> Plan:
    """The best plan for a small GPT on four GPUs, but for what differs."""
    cluster = Cluster(hardware.H100_80GB, 4, node=4)
    return replace(predict.plan(GPTConfig(4, 128, 4, 256, 64), cluster, batch=16).best[0], **differs)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_capstone_understands_the_line_of_a_plan(recompute: bool) -> None:
    plan = plan_for_four(tensor=2, pipeline=2, data=1, zero=1, micro_batch=8, chunks=1, recompute=recompute)
    start, *words = plan.torchrun("-m course_pages.lesson17.capstone runs/gpt").split()
    agent = get_args_parser().parse_args(words)
    layout = capstone.layout_of(capstone.arguments().parse_args(agent.training_script_args))
    assert start == "torchrun" and layout.mesh.size == int(agent.nproc_per_node) == 4
    assert layout == Layout(2, 1, 2, zero=1, micro_batch=8, recompute="full" if recompute else "none")


@pytest.mark.parametrize("axis", ["context", "expert", "chunks"])
def test_the_capstone_refuses_what_it_does_not_cut(axis: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = plan_for_four(**{"chunks": 1, axis: 2}).torchrun("runs/gpt")
    with pytest.raises(SystemExit):
        capstone.arguments().parse_args(line.partition("--nproc-per-node 4 ")[2].split())
    assert f"argument --{axis}: invalid choice: 2 (choose from 1)" in capsys.readouterr().err
