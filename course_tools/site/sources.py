"""Sphinx's sources: the notebooks as pages, the guides with links to pages, and the origin of each page."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course_tools.labs import Lab
from course_tools.lessons import Lesson
from course_tools.site import front, glossary, lecture, notebook, reference

GUIDES = {
    "README.md": "readme",
    "GLOSSARY.md": "glossary",
    "INSTRUCTORS.md": "instructors",
    "CONTRIBUTING.md": "contributing",
    "docs/torchrun.md": "torchrun",
    "docs/using_the_library.md": "using_the_library",
}
"""File in the checkout → page."""
_NAVIGATION = (
    "lessons/index",
    "labs/index",
    "glossary",
    "Library <api/index>",
    "Teaching <instructors>",
    "Contributing <contributing>",
    "Several machines <torchrun>",
    "Your own model <using_the_library>",
    "About <readme>",
)


@dataclass(frozen=True)
class Origin:
    """The origin of a page, for the links at its top.

    Attributes:
        edited: the file that people edit, as a path in the checkout.
        offered: the file that readers download, as a path in the checkout.
    """

    edited: str
    offered: str


@dataclass
class Sources:
    """All that is written for Sphinx.

    Attributes:
        texts: path → text of a page.
        assets: path on the site → content of a file beside the pages.
        origins: page → its origin.
        scripts: pages that have a script of their own.
        slides: page → path of its lecture on the site.
    """

    texts: dict[str, str] = field(default_factory=dict)
    assets: dict[str, bytes] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    scripts: set[str] = field(default_factory=set)
    slides: dict[str, str] = field(default_factory=dict)


def sources_of(
    root: Path, lessons: Sequence[Lesson], labs: Sequence[Lab], repository: str, *, library: bool = True
) -> Sources:
    """The site's sources, from the checkout at `root`, with or without the library's reference.

    Raises:
        ValueError: a notebook is missing, or has no outputs where it should have some.
    """
    found = Sources(texts=reference.reference_pages(root) if library else {})
    pages = {f"lessons/{each.name}.ipynb": f"lessons/{each.name}" for each in lessons}
    pages |= {f"labs/{each.name}/{each.name}.ipynb": f"labs/{each.name}" for each in labs}
    pages |= {file: page for file, page in GUIDES.items() if (root / file).exists()}
    for item in [*lessons, *labs]:
        _add_notebook(found, item, pages, repository)
    for file, page in pages.items():
        if file.endswith(".md"):
            text = _with_links((root / file).read_text("utf-8"), file, page, pages, repository)
            found.texts[f"{page}.md"] = glossary.page_of(text) if page == "glossary" else text
            found.origins[page] = Origin(file, file)
            found.assets[f"_files/{posixpath.basename(file)}"] = (root / file).read_bytes()
    cards = [front.card_of(name, found.texts[f"{name}.ipynb"]) for name in (f"lessons/{each.name}" for each in lessons)]
    if cards:
        found.texts["index.md"], files = front.front_page(root, cards)
        found.assets |= files
    else:  # a site of labs alone
        found.texts["index.md"] = found.texts["readme.md"]
    found.texts["index.md"] += _contents(*(each for each in _NAVIGATION if library or "api" not in each))
    for kind, items, words in (("lessons", lessons, _LESSONS), ("labs", labs, _LABS)):
        found.texts[f"{kind}/index.md"] = _overview(words, found, [f"{kind}/{each.name}" for each in items])
    return found


_LESSONS = "# Lessons\n\nAs they were run. Guess before you read on, and touch the explorers: they need no kernel.\n\n"
_LABS = "# Labs\n\nWhat you build yourself. Open a lab in Jupyter or in Colab to work on it.\n\n"


def _add_notebook(found: Sources, item: Lesson | Lab, pages: dict[str, str], repository: str) -> None:
    file = item.notebook.relative_to(item.root).as_posix()
    if not item.notebook.exists():
        raise ValueError(f"{file} is missing; run `course build {item.number}`")
    content = item.notebook.read_bytes()
    stored = json.loads(content)
    if isinstance(item, Lesson) and notebook.lacks_outputs(stored):
        raise ValueError(f"{file} has no outputs; run `course build {item.number}`")
    name = pages[file]
    page = notebook.page_of(stored, item.name)
    for cell in page.notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _with_neighbours(cell["source"], file, pages, repository)
    found.texts[f"{name}.ipynb"] = json.dumps(page.notebook)
    found.assets |= {f"_figures/{figure}": png for figure, png in page.figures.items()}
    found.assets[f"_files/{item.name}.ipynb"] = content
    if isinstance(item, Lesson):
        found.slides[name] = f"slides/{item.number}.html"
        found.assets[found.slides[name]] = lecture.lecture_of(stored, item.name)[0].encode()
    if page.script:
        found.assets[f"_static/widgets/{name}.js"] = page.script.encode()
        found.scripts.add(name)
    found.origins[name] = Origin(item.source.relative_to(item.root).as_posix(), file)


def _with_neighbours(text: str, file: str, pages: dict[str, str], repository: str) -> str:
    """A cell whose links to notebooks and guides without a page, on a site of a few lessons, lead to the repository."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), found[1]))
        return found[0] if target in pages else f"]({repository}/blob/main/{target})"

    return re.sub(r"\]\(([^)\s:#]+\.(?:ipynb|md))\)", link, text)


def _with_links(text: str, file: str, page: str, pages: dict[str, str], repository: str) -> str:
    """A guide whose links to files of the checkout lead to their pages, or else to the repository.

    The guide's pictures are left out: they show this site.
    """

    def link(found: re.Match[str]) -> str:
        path, mark, part = found[2].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        if target not in pages:
            return f"[{found[1]}]({repository}/blob/main/{target}{mark}{part})"
        suffix = ".ipynb" if target.endswith(".ipynb") else ".md"
        way = posixpath.relpath(pages[target] + suffix, posixpath.dirname(page) or ".")
        return f"[{found[1]}]({way}{mark}{part})"

    text = re.sub(r"!\[[^\]]+\]\([^)\s]+\)\n*", "", text)
    return re.sub(r"\[([^\]]+)\]\(((?!#|[a-z]+:)[^)\s]+)\)", link, text)


def _overview(words: str, found: Sources, names: list[str]) -> str:
    """A page that lists notebooks by title, each with the question or goal of its header."""
    rows = []
    for name in names:
        first = "".join(json.loads(found.texts[f"{name}.ipynb"])["cells"][0]["source"])
        title, about = front.title_and_question(first)
        file = posixpath.basename(name)
        rows.append(f"- [{title}]({file}.ipynb)" + (f": {about}" if about else ""))
    return words + "\n".join(rows) + "\n" + _contents(*(posixpath.basename(name) for name in names))


def _contents(*names: str) -> str:
    listed = "\n".join(names)
    return f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
