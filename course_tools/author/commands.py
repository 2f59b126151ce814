"""The author's commands of `course`: new, build, release and link.

This module only parses and prints; the work is in the modules beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course_tools.choosing import chosen_labs, chosen_lessons, console, is_lab, refusal
from course_tools.labs import Lab
from course_tools.lessons import Lesson, course_root


def new(
    name: Annotated[str, typer.Argument(help="Number and topic, such as 20_adam.")],
    question: Annotated[str, typer.Option(help="The lesson's question.")] = "Who holds what, and what does it cost?",
    package: Annotated[str, typer.Option(help="Where the library module goes, in course_lib.")] = "parallel",
) -> None:
    """Write the files of a new lesson with its lab, small and working, to be replaced piece by piece.

    Lesson, lab, library module, figure, explorer, their tests, known-wrong answers, a line for the changelog, and a row
    in README. Overwrites nothing.
    """
    from course_tools.author.scaffold import Plan, new_lesson

    try:
        written = new_lesson(Plan(course_root(), name, package, question))
    except ValueError as problem:
        raise refusal(problem) from None
    number, topic = name[:2], name[3:]
    console.print(f"✓ {len(written) - 1} files written, one changed:", style="green")
    for path in written:
        console.print(f"  {path.as_posix()}", markup=False)
    console.print(f"""
A lesson costs at most 450 lines of course_lib, 400 of course_pages, 150 of script, 60 s of compute, and 75 s of the
whole check, of which the lab's known-wrong answers take 45. Next:
  course build {number} lab{number}                                       the notebooks
  python -m pytest -q tests/{package}/test_{topic}.py tests/pages/lesson{number}
  python -m pytest -q tests/labs/test_labs.py -k lab{number}      stubs, solution, known-wrong answers
Then replace, from the question on. CONTRIBUTING.md, "Writing a lesson", says how; its weeks are in INSTRUCTORS.md.""",
        markup=False,
        soft_wrap=True,
    )  # fmt: skip


def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Lessons (00, 01_float_formats), labs (lab01), README.md. Default: all of them."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Run nothing; fail if one is out of date.")] = False,
    stale: Annotated[bool, typer.Option("--stale", help="Only those whose inputs have changed since.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Take new outputs for cells tagged 'varies', too.")] = False,
) -> None:
    """Execute the sources of lessons and labs and write the notebooks, the same to the byte each time.

    A lesson's source is in lessons/src; a lab's is in solutions/src and gives two notebooks, the students' with stubs
    and without hidden tests, and the solved one. Each notebook keeps a hash of its inputs: its source, the files of the
    course that this imports, the pinned packages. Outputs of cells tagged 'varies' (seconds, for instance) stay as they
    are while the cell is unchanged. In README.md, the lines of each part of the packages are counted.
    """
    from course_tools.author.build_all import build_all, build_readme, check_all, is_fresh

    labs = [name for name in names or [] if is_lab(name)]
    lessons = [name for name in names or [] if name not in (*labs, "README.md")]
    chosen: list[Lesson | Lab] = [*chosen_lessons(lessons)] if lessons or not names else []
    chosen += chosen_labs(labs) if labs or not names else []
    if stale:
        chosen = [item for item in chosen if not is_fresh(item)]
    good = build_readme(course_root(), console, check=check) if not names or "README.md" in names else True
    good &= check_all(chosen, console) if check else build_all(chosen, console, fresh=fresh)
    raise typer.Exit(0 if good else 1)


def release(
    destination: Annotated[Path, typer.Argument(help="Folder to write; a zip of the same name stands beside it.")],
    labs: Annotated[list[str] | None, typer.Argument(help="Labs to hand out, such as lab01. Default: all.")] = None,
    term: Annotated[
        str,
        typer.Option(metavar="NAME", help="Draw numbers of labs from this name, such as 2027-spring."),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier release in that folder.")] = False,
) -> None:
    """Write what students get, as a folder and a zip: lessons, labs, library; no solutions and no hidden tests.

    With a term, some numbers of the labs are others than the published ones, and answers of another term lose points.
    `course grade` then judges by the term of the last release (so far labs 01, 02 and 06 have such numbers).

    Fails, and writes nothing, if a line of a lab's solution or hidden tests stands in it, or three in a row elsewhere.
    """
    from course_tools.author.release import release_course

    try:
        release_course(course_root(), destination, chosen_labs(labs), console, term=term, force=force)
    except ValueError as problem:
        raise refusal(problem) from None


def link(
    name: Annotated[str, typer.Argument(help="The lesson or lab, such as 06 or lab06.")],
    hub: Annotated[str, typer.Option(help="Address of a JupyterHub that has nbgitpuller.")] = "",
    repository: Annotated[
        str, typer.Option(help="Where students' copy is. Default: the address in pyproject.toml.")
    ] = "",
    branch: Annotated[
        str, typer.Option(help="Branch or tag of that repository. Default: the tag behind the address, else main.")
    ] = "",
) -> None:
    """Print the addresses that open a lesson or lab in Colab, Binder, Codespaces, and on your JupyterHub.

    The repository has to be one that students may read: push what `course release` wrote, never the clone with its
    solutions.
    """
    from course_tools.author.addresses import addresses
    from course_tools.author.source import repository_url, split_tag

    item = chosen_labs([name])[0] if is_lab(name) else chosen_lessons([name])[0]
    notebook = item.notebook.relative_to(item.root).as_posix()
    address, tag = split_tag(repository or repository_url(item.root))
    try:
        found = addresses(notebook, address, branch=branch or tag, hub=hub)
    except ValueError as problem:
        raise refusal(problem) from None
    for place, address in found.items():
        console.print(f"{place:<11} {address}", markup=False, soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `course`."""
    app.command(epilog="Example: `course new 20_adam --question 'What does a step owe to the steps before it?'`")(new)
    app.command(epilog="Examples: `course build 04 lab02`, `course build --check`, `course build README.md`")(build)
    app.command(epilog="Examples: `course release ../out lab01 --force`, `course release ../out --term 2027-spring`")(
        release
    )
    app.command(epilog="Example: `course link 06 --hub https://hub.example.edu`")(link)
