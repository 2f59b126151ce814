"""The `course` command: open lessons and labs, run them, look at this machine.

This module only parses and prints. With `author/`, `grading/` and `site/` beside it there are their commands, too:
build, release, link, new, grade, feedback, site, slides. Students get none of these folders.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from course_tools.choosing import chosen_labs, chosen_lessons, console, go_to_the_course, is_lab, refusal
from course_tools.labs import Lab
from course_tools.lessons import Lesson

app = typer.Typer(
    help="Bigger Than One GPU: open the lessons and labs, run them, check this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("open", epilog="Examples: `course open 03`, `course open lab03 --no-browser`, `course open --to course`")
def open_(
    lesson: Annotated[str, typer.Argument(help="The lesson or lab to open, such as 02 or lab02.")] = "00",
    browser: Annotated[bool, typer.Option(help="Open a browser; otherwise only print the address.")] = True,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="First copy the lessons and labs there; files that are there stay."),
    ] = None,
) -> None:
    """Open JupyterLab at a lesson or a lab and print its address. Ctrl-C stops it.

    Without a clone, the lessons and labs are first copied to the folder bigger-than-one-gpu, or to DIR.
    """
    from course_tools.opening import open_notebook

    go_to_the_course(to)
    items: Sequence[Lesson | Lab] = chosen_labs([lesson]) if is_lab(lesson) else chosen_lessons([lesson])
    try:
        open_notebook(items[0], browser=browser)
    except ValueError as problem:
        raise refusal(problem) from None


@app.command(epilog="Example: `course run 00 06`")
def run(
    lessons: Annotated[
        list[str] | None, typer.Argument(help="Numbers or names, such as 00 or 01_float_formats. Default: all.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a single cell may take.")] = 300,
    checks: Annotated[
        bool, typer.Option("--checks", help="List every table, with where its two numbers come from.")
    ] = False,
) -> None:
    """Run lessons from top to bottom without a browser; the notebooks stay as they are.

    Ends with a table: seconds, checks that were made, and the worst ratio of measurement to prediction. The exit code
    is 1 if any cell failed.
    """
    from course_tools.running import run_lessons

    for lab in filter(is_lab, lessons or []):
        raise refusal(ValueError(f"{lab} is a lab: its answers are yours to write. `course open {lab}` opens it"))
    passed = run_lessons(chosen_lessons(lessons), console, timeout_s=timeout, checks=checks)
    raise typer.Exit(0 if passed else 1)


@app.command("train-grid", epilog="Example: `course train-grid --workers 2`, and again after Ctrl-C")
def train_grid(
    to: Annotated[Path, typer.Option(metavar="FILE", help="Where results go; those that are there stay.")] = Path(
        "runs.json"
    ),
    workers: Annotated[int, typer.Option(min=1, help="Processes; each keeps a core busy.")] = 2,
    beside: Annotated[
        bool, typer.Option(help="Also other seeds and learning rates, and text that comes again.")
    ] = False,
) -> None:
    """Train the 30 runs of lesson 14 and the one that is ten times larger: some ten minutes on two quiet cores."""
    # A program of its own: the tools know no page.
    command = [sys.executable, "-m", "course_pages.lesson14.train_grid", str(to), str(workers), *["beside"] * beside]
    started = subprocess.Popen(command)
    try:
        raise typer.Exit(started.wait())
    except KeyboardInterrupt:  # Ctrl-C reaches both; the program prints the number of runs that it has kept
        raise typer.Exit(started.wait()) from None


@app.command()
def doctor() -> None:
    """Check this machine: Python, PyTorch, devices, real ranks, disk, and the versions against the pinned ones."""
    from course_tools.doctor import examine

    raise typer.Exit(0 if examine(console) else 1)


@app.command("plan", epilog="Example: `course plan llama3-70b --gpus 1024 --of H100`")
def plan_(
    model: Annotated[str, typer.Argument(help="A model of the zoo, such as llama3-70b or gpt3-175b.")],
    gpus: Annotated[int, typer.Option(min=1, help="How many GPUs.")],
    of: Annotated[str, typer.Option(help="Of which kind, such as H100 or A100-80GB.")] = "H100",
    batch: Annotated[int | None, typer.Option(help="Sequences of a step. Default: 4M tokens' worth.")] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens of a sequence. Default: the model's context.")] = None,
    node: Annotated[int, typer.Option(help="GPUs of a node.")] = 8,
    like: Annotated[str, typer.Option(help="Constants of this machine with its software, such as h100-fsdp.")] = "",
    most: Annotated[int, typer.Option(min=1, max=100, help="How many plans to show, 100 at most.")] = 10,
    with_map: Annotated[bool, typer.Option("--map", help="Also the fastest of each tensor and pipeline size.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Plan a run: the legal layouts with their seconds and their memory, the fastest that fits first."""
    from course_tools.planning import has_experts, planned, show

    try:
        plans = planned(model, gpus, of, batch, seq, node, like)
    except ValueError as problem:
        raise refusal(problem) from None
    if as_json:
        typer.echo(plans.json())
    else:
        show(plans, console, most, with_map)
    if has_experts(model):  # not into the output, which a program may read
        typer.echo("Experts are untested: no published run here has them (lesson 17, section 5).", err=True)


READS = ("course_tools/*/commands.py",)  # for the walk over imports, which cannot follow the loop below
for _package in ("author", "grading", "site"):
    if importlib.util.find_spec(f"course_tools.{_package}"):
        importlib.import_module(f"course_tools.{_package}.commands").add_to(app)
