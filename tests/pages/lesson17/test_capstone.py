"""The capstone: every layout learns what one process learns, also after a death, and costs what `machine` says."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from course_kit import ranks
from course_kit.units import Seconds
from course_lib.model.gpt import GPTConfig
from course_lib.predict.traffic import Link
from course_pages.lesson17 import capstone, machine
from course_pages.lesson17.capstone import Layout, Line, Training

SMALL = Training(GPTConfig(4, 32, 4, 256, 32), steps=3, dtype="float64")
METERED = Training()
AGAIN = [Layout(pipeline=2, recompute="full")] + [Layout(tensor=2, recompute=how) for how in ("full", "selective")]
PACE = machine.Pace(1e-4, 2e-4, 5e-5, 1e10, 1e-9, 2e-9, Link(Seconds(1e-4), 1e-9), Link(Seconds(5e-5), 5e-10))


def made_up(cores: int) -> machine.Machine:
    return machine.Machine(cores, dict.fromkeys((1, 2, 4), PACE))


def test_there_are_at_most_twelve_legal_layouts_and_the_quickest_is_first() -> None:
    for world_size, number in {1: 1, 2: 5, 4: 11}.items():
        found = machine.layouts(Training(), world_size)
        assert len(set(found)) == len(found) == number <= 12
        assert all(layout.mesh.size == world_size for layout in found)
        ranked = machine.rank_layouts(Training(), found, made_up(2))
        assert [each.seconds for each in ranked] == sorted(each.seconds for each in ranked)
        assert {each.layout for each in ranked} == set(found)
    assert not machine.layouts(replace(Training(), batch_size=2), 4, zero=(0,), micro_batch=4)
    uneven = replace(Training(), config=replace(Training().config, layers=5))
    assert not machine.is_legal(uneven, Layout(pipeline=2))


def test_cores_are_shared_by_what_works_and_not_by_what_waits() -> None:
    """With a core for each rank replicas beat a pipeline, whose ranks wait; on one core all have the same work."""
    still = PACE._replace(launch_s=0.0, link=machine.FREE, handling=machine.FREE, update_s=0.0, zero_update_s=0.0)
    replicas, pipe = (Training().setup(layout) for layout in (Layout(data=4), Layout(pipeline=4)))
    for cores, slower in ((4, 1 + 3 / 4), (1, 1.0)):
        there = machine.Machine(cores, {4: still})
        last = machine.busy(pipe, 3, still) / (machine.busy(replicas, 0, still))  # the head is the last stage's alone
        due = slower * last if cores == 4 else slower
        ratio = machine.predict_seconds(pipe, there) / machine.predict_seconds(replicas, there)
        assert math.isclose(ratio, due), f"{cores} cores"
    with pytest.raises(ValueError, match="4 ranks, but the machine was measured on"):
        machine.predict_seconds(pipe, machine.Machine(2, {1: PACE}))


@pytest.mark.parametrize(
    ("layout", "messages"),
    [
        (Layout(tensor=2), 4 * (4 * 4 * 2 + 1 + 1 + 2)),  # micro-batches · (sums in blocks, three ends)
        (Layout(data=4, zero=1), 6 + 2 * 6),  # gradients; who had some, and the loss
        (Layout(pipeline=2, data=2), 2 + 2 + 2 + 2 + 1),  # the stream of two micro-batches, three sums, the tied table
    ],
)
def test_messages_are_as_many_as_the_ranks_make(layout: Layout, messages: int) -> None:
    assert machine.messages(Training().setup(layout), 0)[0] == messages


def test_a_wait_for_a_core_counts_once_and_a_message_on_its_way_counts() -> None:
    setup, handling = Training().setup(Layout(tensor=4)), Link(Seconds(5e-4), 0.0)  # 432 messages

    def predicted(alpha: float) -> float:
        pace = PACE._replace(handling=handling, link=Link(Seconds(alpha), 0.0))
        return float(machine.predict_seconds(setup, machine.Machine(2, {4: pace})))

    assert math.isclose(predicted(5e-4), predicted(1e-3))  # 4 ranks on 2 cores take turns: twice the processor's time
    assert math.isclose(predicted(1.5e-3) - predicted(1e-3), 432 * 5e-4 / 2)  # whole in the upper bound alone


def test_what_is_cut_has_prices_of_its_own() -> None:
    """More operations in a block for tensor ranks, a unit to gather and free for ZeRO-3, buckets for ZeRO-1."""
    layouts = {"replicas": Layout(data=2), "tensor": Layout(tensor=2)}
    layouts |= {f"zero {stage}": Layout(data=2, zero=stage) for stage in (1, 3)}  # type: ignore[arg-type]
    who = {"launch_s": {"replicas", "zero 1", "zero 3"}, "cut_launch_s": {"tensor"}, "unit_launch_s": {"zero 3"}}
    who |= {"update_s": {"replicas", "tensor", "zero 3"}, "zero_update_s": {"zero 1"}}
    setups = {name: Training().setup(layout) for name, layout in layouts.items()}
    for price, due in who.items():
        dear = PACE._replace(**{price: 10 * getattr(PACE, price)})
        pays = {name for name, each in setups.items() if machine.busy(each, 0, dear) > machine.busy(each, 0, PACE)}
        assert pays == due, price


def test_a_container_has_the_cores_that_its_time_is_worth(tmp_path: Path) -> None:
    limit, here = tmp_path / "cpu.max", machine.count_cores(tmp_path / "none")
    assert here >= 1
    for text, cores in (("max 100000", here), ("100000 100000", 1), ("50000 100000", 1), ("99900000 100000", here)):
        limit.write_text(text, "ascii")
        assert machine.count_cores(limit) == cores, text


def test_checkpoints_are_not_overwritten_by_a_new_run_nor_read_by_other_tensor_ranks(tmp_path: Path) -> None:
    def again(layout: Layout, resume: bool) -> str:
        try:
            return str(list(capstone.train(replace(SMALL, steps=1), layout, tmp_path, resume=resume)))
        except ValueError as error:
            return str(error)

    assert "loss" in ranks.run(again, Layout(data=2), False, world_size=2)[0]
    assert "give --resume" in ranks.run(again, Layout(data=2), False, world_size=2)[0]
    assert "load with tensor=1" in ranks.run(again, Layout(tensor=2), True, world_size=2)[0]
    assert ranks.run(again, Layout(pipeline=2), True, world_size=2)[0] == "[]"


def lines_of_all(training: Training, layouts: list[Layout]) -> list[list[Line]]:
    torch.set_num_threads(1)
    return [list(capstone.train(training, layout)) for layout in layouts]


def test_the_text_of_lesson_14_can_be_the_text() -> None:
    training = replace(SMALL, config=GPTConfig(2, 32, 2, 32, 32, norm="rmsnorm", bias=False), source="words")
    layouts = [Layout(data=2, zero=1), Layout(tensor=2)]
    alone = capstone.train_alone(training)
    assert 3 < alone[-1] < alone[0] < 4  # from the logarithm of 32
    for lines in ranks.run(lines_of_all, training, layouts, world_size=2, diagnose=False)[0]:
        assert [line["loss"] for line in lines] == pytest.approx(alone, abs=1e-10)


def every_layout(training: Training, world_size: int) -> list[Layout]:
    found = machine.layouts(training, world_size, zero=(0, 1, 2, 3))
    return [*found, *AGAIN] if world_size == 2 else found


@pytest.mark.parametrize("world_size", [1, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 4))])
def test_every_layout_has_the_loss_of_one_process_after_each_step(world_size: int) -> None:
    layouts = every_layout(SMALL, world_size)
    if world_size == 2:
        layouts.append(Layout(data=2, zero=3, recompute="full"))
    runs = ranks.run(lines_of_all, SMALL, layouts, world_size=world_size, diagnose=False)
    alone = capstone.train_alone(SMALL)
    assert alone[-1] < alone[0] - 0.01
    for lines_of_rank in runs:
        for layout, lines in zip(layouts, lines_of_rank, strict=True):
            off = max(abs(line["loss"] - loss) for line, loss in zip(lines, alone, strict=True))
            assert off < 1e-10, f"{layout}: the loss is off by {off:.1e}"


def two_metered_steps(training: Training, layouts: list[Layout]) -> list[list[Line]]:
    """Behind a first step, which makes the optimizer's states."""
    torch.set_num_threads(1)
    found = []
    for layout in layouts:
        grid, optimizer = capstone.build(training, layout)
        capstone.timed_step(grid, optimizer, training.batch(0))
        found.append([capstone.metered_step(grid, optimizer, training.batch(step)) for step in (1, 2)])
    return found


@pytest.mark.parametrize("world_size", [1, *(pytest.param(p, marks=pytest.mark.nightly) for p in (2, 4))])
def test_bytes_at_the_peak_and_bytes_sent_are_within_five_percent(world_size: int) -> None:
    """Of every rank: so a layout that replicates what it should cut fails, and one that sends too much.

    A busy machine may give a message's memory back late, after the next was taken: so of two steps the smaller peak.
    """
    layouts = every_layout(METERED, world_size)
    runs = ranks.run(two_metered_steps, METERED, layouts, world_size=world_size, diagnose=False)
    for layout, (before, met) in zip(layouts, runs[0], strict=True):
        setup, peaks = METERED.setup(layout), list(map(min, before["peak"], met["peak"]))
        stages = [layout.mesh.coordinates(rank)["pipeline"] for rank in range(world_size)]
        assert peaks == pytest.approx([machine.predict_peak(setup, stage) for stage in stages], rel=0.05), layout
        due = [machine.messages(setup, stage)[1] for stage in stages]
        assert met["sent"] == pytest.approx(due, rel=0.05), layout


def wait_for(folder: Path, step: int, agent: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while not any(line["step"] >= step for line in capstone.said(folder) if "step" in line):
        assert agent.poll() is None and time.monotonic() < deadline, (folder / "said.txt").read_text()[-3000:]
        time.sleep(0.02)


def kill(agent: subprocess.Popen[bytes]) -> None:
    """Agent and ranks at once, as when a machine loses its power; off Linux the ranks follow their agent."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    assert len(pids) >= 4 or sys.platform != "linux"
    for pid in [agent.pid, *pids]:
        os.kill(pid, signal.SIGKILL)
    agent.wait()


@pytest.mark.nightly
@pytest.mark.timeout(600)  # nine processes import torch, one after the other where there are few cores
def test_a_run_that_is_killed_goes_on_with_other_ranks_in_another_layout(tmp_path: Path) -> None:
    """Four ranks, two stages of two replicas, die by SIGKILL; two ranks with ZeRO-3 end on one process's loss."""
    training = replace(SMALL, steps=12)
    options = ["--config", '{"width": 32, "context": 32}', "--steps", "12", "--every", "3", "--dtype", "float64"]
    agent = capstone.start(tmp_path, Layout(pipeline=2, data=2, zero=1), *options, "--pause-s", "0.2")
    wait_for(tmp_path, 7, agent)
    kill(agent)
    first = capstone.said(tmp_path)
    assert [line["step"] for line in first] == list(range(len(first))) and 8 <= len(first) < 12
    other = capstone.start(tmp_path, Layout(data=2, zero=3), *options, "--resume")
    assert other.wait(300) == 0, (tmp_path / "said.txt").read_text()[-3000:]
    lines, last = capstone.said(tmp_path)[:-1], capstone.said(tmp_path)[-1]
    resumed = lines[len(first) :]
    assert resumed[0]["step"] in (3, 6, 9) and [line["step"] for line in resumed] == [*range(resumed[0]["step"], 12)]
    assert last["layout"]["zero"] == 3 and len(resumed[1]["peak"]) == 2
    alone = capstone.train_alone(training)
    off = max(abs(line["loss"] - alone[line["step"]]) for line in lines)
    assert off < 1e-10, f"the loss is off by {off:.1e}"


def race(training: Training, layouts: list[Layout], rounds: int = 5) -> list[list[Line]]:
    """The lines of each layout's steps, taken in turn, so that what else the machine does meets all."""
    torch.set_num_threads(1)
    made = [capstone.build(training, layout) for layout in layouts]
    lines: list[list[Line]] = [[] for _ in layouts]
    for step in range(rounds + 1):
        for each, (grid, optimizer) in zip(lines, made, strict=True):
            line = capstone.timed_step(grid, optimizer, training.batch(step))
            each += [line] if step else []  # the first step warms up
    return lines


@pytest.mark.timed
@pytest.mark.timeout(300)
def test_the_first_of_the_list_is_quicker_than_the_last() -> None:
    """In steps that take turns, whatever else the machine does. (Seconds within 20 % are for a quiet machine.)

    Where ranks share cores, the processor's seconds over the cores tell of this program alone: within a factor of 2.
    """
    training, here = Training(), machine.calibrate(Training(), (4,))
    ranked = machine.rank_layouts(training, machine.layouts(training, 4), here)
    ends = [ranked[0].layout, ranked[-1].layout]
    lines = ranks.run(race, training, ends, world_size=4, diagnose=False, timeout_s=200)[0]
    pairs = [(a["seconds"], b["seconds"]) for a, b in zip(*lines, strict=True)]
    assert median(slow / quick for quick, slow in pairs) > 1.1, f"{ends} took {pairs}"
    still = machine.Machine(here.cores, {4: here.paces[4]._replace(link=machine.FREE)})  # no waiting, which is weather
    for layout, each in zip(ends, lines, strict=True) if here.cores < 4 else ():
        busy = median(line["processor_seconds"] for line in each) / here.cores
        predicted = machine.predict_seconds(training.setup(layout), still)
        assert busy / 2 < predicted < busy * 2, f"{layout}: {predicted} and {busy} s"
