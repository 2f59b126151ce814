"""The pages' words about the code, held against the code: sizes, floors, names of files, first lines of modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
import pytest

from course_tools import TAUGHT
from course_tools.author.minutes import stated
from course_tools.author.readme import counted_files, lines_of, stale_sizes, write_sizes
from tests.test_floors import FLOORS

ROOT = Path(__file__).parents[1]
READS = ("*.md", "docs/*", "course_*/**/*", "lessons/**/*", "solutions/src/*.py", "tests/**/*.py", "benchmarks/*.py")
PACKAGES = (*TAUGHT, "course_tools")
GUIDES = ("docs/torchrun.md", "docs/using_the_library.md")
PAGES = ("README.md", "CONTRIBUTING.md", "INSTRUCTORS.md", "GLOSSARY.md", *GUIDES)
CITED = ("deepspeed/runtime/precision_config.py", "megatron/training/arguments.py", "calc_transformer_mem.py")
NOT_OURS = {"mappings.py", "serialization.py", "storage.py", *CITED}
"""Files of PyTorch, DeepSpeed, Megatron-LM and EleutherAI's cookbook that our texts cite."""


def test_readmes_tables_of_sizes_are_counted() -> None:
    assert stale_sizes(ROOT) == [], "`course build README.md` counts again"


def test_a_stale_size_and_a_file_without_a_row_are_found_and_sizes_are_written(tmp_path: Path) -> None:
    for name, lines in {"__init__.py": 5, "room/one.py": 990, "room/two.js": 230, "top.py": 70}.items():
        (tmp_path / "house" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "house" / name).write_text("a line\n" * lines, "utf-8")
    rows = ["| `house` | lines |", "| `room/` | 1,200 | x |"]
    rows += ["| all of `house` | 1,500 | 230 of them are the explorers' scripts and style sheets |"]
    page = tmp_path / "README.md"
    page.write_text("\n".join(["| 7 |", "<!-- sizes: `course build` counts them -->", *rows, "<!-- end of sizes -->"]))
    summed = "README.md: all of `house` has 1,295 lines, not 1,500"
    assert stale_sizes(tmp_path) == [summed, "README.md: house/top.py is counted in 0 rows of its table"]
    page.write_text(page.read_text("utf-8").replace("`room/`", "`top.py`, `room/`"), "utf-8")
    assert stale_sizes(tmp_path) == [summed]
    assert write_sizes(tmp_path) and not write_sizes(tmp_path) and stale_sizes(tmp_path) == []
    assert re.findall(r"[\d,]{3,}", page.read_text("utf-8")) == ["1,300", "1,300", "250"]


def rows(page: str) -> Iterator[list[str]]:
    """The cells of every row of every table of a page."""
    for line in (ROOT / page).read_text("utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_floors_are_those_of_the_house() -> None:
    floors = [row for row in rows("CONTRIBUTING.md") if row[0].isdecimal() and len(row[0]) == 1]
    for column, package in enumerate(TAUGHT, 1):
        told = [set(re.findall(r"`(\w+?)(?:NN)?/?`", row[column])) for row in floors]
        assert tuple(filter(None, told)) == FLOORS[package]


def test_the_minutes_of_the_term_are_those_of_the_headers() -> None:
    told = {}
    for row in rows("INSTRUCTORS.md"):
        if lesson := re.search(r"\(lessons/(\w+)\.ipynb\), first sitting, (\d+) min", " | ".join(row)):
            second = re.search(r"its second sitting, (\d+) min", " | ".join(row))
            told[lesson[1]] = [int(lesson[2]), int(second[1]) if second else 0]
    notebooks = sorted((ROOT / "lessons").glob("*.ipynb"))
    assert told == {path.stem: stated(nbformat.read(path, as_version=4).cells) for path in notebooks}


LIMITS = {"course_lib": 15_050, "course_kit": 7_600, "course_pages": 13_600, "tests": 41_200}
"""The most lines of each package, for lessons 00 to 17."""
LONGEST_FILE, LONGEST_IDEA, LONGEST_FUNCTION = 300, 500, 50
ONE_IDEA = {
    "course_kit/checks/check.py": "what a lab checks: values, and what they cost",
    "course_kit/checks/restrictions.py": "what an answer may not use: formats, tensors, names",
    "course_kit/measure/timeline.py": "who computed, sent and waited when",
    "course_lib/model/gpt.py": "the model, short enough to read in one sitting",
    "course_lib/model/zoo.py": "a table of published models",
    "course_lib/parallel/data.py": "replicas that stay equal",
    "course_lib/parallel/experts.py": "tokens that travel to experts and back",
    "course_lib/parallel/zero.py": "an optimizer of which each rank has a part",
    "course_lib/parallel/zero3.py": "weights that are whole only while they are used",
    "course_lib/predict/lifetimes/step.py": "when each tensor of a step is born and dies",
    "course_lib/predict/setup.py": "one value for a training setup, and what it refuses",
    "course_lib/train/precision.py": "three repairs of 16 bits",
    "course_lib/train/recompute.py": "keep an input, and run again",
}
"""The files that may have up to 500 lines, and the one idea of each."""


@pytest.mark.parametrize("package", LIMITS)
def test_a_package_stays_within_its_budget(package: str) -> None:
    have = lines_of(counted_files(ROOT / package))
    assert have <= LIMITS[package], f"{package} has {have} lines; for a lesson of your own raise LIMITS, above"


def test_no_file_and_no_function_is_too_long_to_be_one_idea() -> None:
    found = [path for package in PACKAGES for path in counted_files(ROOT / package)]
    long = {path.relative_to(ROOT).as_posix(): n for path in found if (n := lines_of([path])) > LONGEST_FILE}
    assert long.keys() - ONE_IDEA.keys() == set(), "say what their one idea is, in ONE_IDEA, or make two files of each"
    assert ONE_IDEA.keys() - long.keys() == set(), f"{LONGEST_FILE} lines or fewer: they need no line in ONE_IDEA"
    assert [name for name, lines in long.items() if lines > LONGEST_IDEA] == []
    functions = [
        (path.name, node)
        for path in found
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [(name, node.name) for name, node in functions if _code_lines(node) > LONGEST_FUNCTION] == []


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Number of a function's lines below the docstring."""
    first = function.body[1:2] if ast.get_docstring(function) else function.body[:1]
    return sum((function.end_lineno or 0) - node.lineno + 1 for node in first)


def sources() -> list[Path]:
    """Every module of ours that has a first line to say something."""
    found = [path for folder in (*PACKAGES, "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    mutants = ROOT / "tests" / "mutants"
    elsewhere, ours = {mutants, ROOT / "tests" / "grading" / "tiny"}, mutants / "generated"
    return [ROOT / "start.py", *(p for p in found if elsewhere.isdisjoint(p.parents) or ours in p.parents)]


def test_the_first_line_of_every_module_says_what_it_holds() -> None:
    for path in sources():
        first = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
        assert len(first) > 20 and first.endswith((".", "?", ":", ")", '"')), f"{path.relative_to(ROOT)}: {first!r}"


@cache
def files() -> list[str]:
    """Every file that a text may name, as `/path/in/the/checkout`."""
    found = [*sources(), *(path for package in PACKAGES for path in counted_files(ROOT / package))]
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in found]


def missing(text: str) -> list[str]:
    """Files and modules of ours that a text names and that are not there. Words in capitals stand for a name."""
    named = {name for name in re.findall(r"`([\w/]+\.(?:py|js|css|jinja))`", text) if not re.search("[A-Z]{2}", name)}
    gone = [name for name in named - NOT_OURS if not any(path.endswith(f"/{name}") for path in files())]
    modules = set(re.findall(r"\b(course_(?:kit|lib|pages|tools))[./](?!_|py\b|lesson\b|lessonNN)(\w+)", text))
    return gone + [
        f"{top}.{part}" for top, part in modules if not any(map(re.compile(f"/{top}/{part}\\b").match, files()))
    ]


def test_what_pages_lessons_and_docstrings_name_is_there() -> None:
    pages = [ROOT / name for name in PAGES]
    texts = [*pages, *(ROOT / "lessons" / "src").glob("*.py"), *(ROOT / "solutions" / "src").glob("*.py")]
    texts += [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    gone = {path.relative_to(ROOT).as_posix(): missing(path.read_text("utf-8")) for path in texts}
    assert {path: names for path, names in gone.items() if names} == {"CONTRIBUTING.md": ["lessons/src/20_adam.py"]}


def test_a_name_that_is_gone_is_found() -> None:
    assert missing("`predict/memory.py`, `lessons/src/NN_topic.py`, `course_kit.units`") == []
    assert missing("`predict/lifetimes.py`") == ["predict/lifetimes.py"]
    assert set(missing("see course_lib.commands, course_lib/build")) == {"course_lib.commands", "course_lib.build"}
