"""`course new`: the files of a lesson and its lab, small, and all of them work; the author replaces them one by one.

The texts are in `templates/`. They make one whole lesson about sharing `n` items among ranks: the lesson builds, its
tests pass, and its known-wrong answers lose their points. CONTRIBUTING.md explains the way.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("numerics", "model", "data", "collectives", "train", "pipeline", "parallel", "offload", "predict")
"""The rooms of `course_lib`, in any of which a lesson's library module may live."""
LONGEST = 30
"""Letters in a topic: longer ones would not leave the templates' lines within 120 columns."""

_TEMPLATES = Path(__file__).with_name("templates")
_FILES = {
    "lesson.py": "lessons/src/{name}.py",
    "lab.py": "solutions/src/lab{name}.py",
    "library.py": "course_lib/{package}/{topic}.py",
    "package.py": "course_pages/lesson{number}/__init__.py",
    "pictures.py": "course_pages/lesson{number}/pictures.py",
    "explorer.py": "course_pages/lesson{number}/explorer.py",
    "explorer.js": "course_pages/lesson{number}/explorer.js",
    "explorer.css": "course_pages/lesson{number}/explorer.css",
    "test_library.py": "tests/{package}/test_{topic}.py",
    "test_pictures.py": "tests/pages/lesson{number}/test_pictures.py",
    "test_explorer.py": "tests/pages/lesson{number}/test_explorer.py",
    "test_browser.py": "tests/browser/test_{topic}.py",
    "q1.diff": "tests/mutants/lab{number}/q1.diff",
    "q2.diff": "tests/mutants/lab{number}/q2.diff",
    "fragment.md": "changelog.d/+{name}.lesson.md",
}
_ROW = "| [{number}](lessons/{name}.ipynb) | {title} | {question} | [{title}](labs/lab{name}/lab{name}.ipynb) |\n"


@dataclass(frozen=True)
class Plan:
    """A lesson that is to be written.

    Args:
        root: the checkout.
        name: number and topic, as in `20_adam`.
        package: one of `PACKAGES`.
        question: the lesson's question, in one sentence.

    Raises:
        ValueError: a name, a package or a question that cannot be, or a number that another lesson has.
    """

    root: Path
    name: str
    package: str
    question: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d\d(_[a-z][a-z0-9]*)+", self.name):
            raise ValueError(f"{self.name!r}: two digits and a topic are needed, as in 20_adam")
        if keyword.iskeyword(self.topic):
            raise ValueError(f"the topic {self.topic!r} is a word of Python's, and no module can be called so")
        if len(self.topic) > LONGEST:
            raise ValueError(f"the topic {self.topic!r} has {len(self.topic)} letters; at most {LONGEST} fit")
        if self.package not in PACKAGES:
            raise ValueError(f"no package {self.package!r} for a lesson's library: choose one of {', '.join(PACKAGES)}")
        if not self.question.strip() or {"\n", "|"} & set(self.question):
            raise ValueError(f"the question {self.question!r} must be one line without |, for it stands in a table")
        if taken := [path for path in self.root.glob(f"lessons/src/{self.number}_*.py") if path.stem != self.name]:
            raise ValueError(f"number {self.number} belongs to {taken[0].stem}: take another, 20 and above are free")

    @property
    def number(self) -> str:
        """Two digits, as in `08`."""
        return self.name[:2]

    @property
    def topic(self) -> str:
        """The name that the modules get, as in `tensor_parallelism`."""
        return self.name[3:]

    @property
    def words(self) -> dict[str, str]:
        """The words that the templates put in, by placeholder."""
        words = self.topic.split("_")
        return {
            "name": self.name,
            "number": self.number,
            "topic": self.topic,
            "package": self.package,
            "title": " ".join(words).capitalize(),
            "question": self.question.strip(),
            "class_name": "".join(map(str.capitalize, words)) + "Explorer",
            "prefix": self.topic.replace("_", "-"),
        }

    def files(self) -> dict[Path, str]:
        """Every new file and its text: path in the checkout → text."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        loader = FileSystemLoader(_TEMPLATES, "utf-8")
        templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
        templates.globals["imports"] = _imports
        texts = {name: templates.get_template(f"{name}.jinja").render(self.words) for name in _FILES}
        return {Path(path.format_map(self.words)): texts[name] for name, path in _FILES.items()}


def new_lesson(plan: Plan) -> list[Path]:
    """Write the files of a lesson and put its row into README's table of lessons.

    Returns:
        The files that were written, as paths in the checkout; README.md is the last.

    Raises:
        ValueError: a file is there already, or README has no table of lessons; then nothing is written.
    """
    files, readme = plan.files(), plan.root / "README.md"
    if there := [path.as_posix() for path in files if (plan.root / path).exists()]:
        raise ValueError(f"nothing was written, because this is there already: {', '.join(there)}")
    files[Path(readme.name)] = _with_row(readme.read_text("utf-8"), plan)
    for path, text in files.items():
        (plan.root / path).parent.mkdir(parents=True, exist_ok=True)
        (plan.root / path).write_text(text, "utf-8", newline="\n")
    return list(files)


def _with_row(readme: str, plan: Plan) -> str:
    """README's text with the lesson in its table, at the place of the lesson's number."""
    rows = list(re.finditer(r"^\| \[(\d\d)\]\(lessons/.*\n", readme, re.MULTILINE))
    if not rows:
        raise ValueError(
            "README.md has no table of lessons (rows that begin with `| [00](lessons/`) to put this one in"
        )
    end = max((row.end() for row in rows if row[1] < plan.number), default=rows[0].start())
    return readme[:end] + _ROW.format_map(plan.words) + readme[end:]


def _imports(lines: Sequence[str]) -> str:
    """Import lines in the order that ruff wants, which depends on the names."""
    return "\n".join(sorted(lines))
