"""Sphinx's extension for this course: MathML, links to words and names, links at a page's top, widgets."""

from __future__ import annotations

import builtins
import html
import importlib
import json
import posixpath
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

from course_tools.site import glossary, maths, names, reference
from course_tools.site.sources import Sources

_EMPTY_HEAD = re.compile(r"<th\b[^>]*>(?:<p></p>)?</th>")
"""The corner of a table with headings on two sides; a heading without words would be read out as one."""

_SHARES = 4
"""Number of runs of pages into which the reading is dealt out: two for each of two processes."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension to Sphinx, which calls this when it loads it."""
    app.add_html_math_renderer("mathml", (maths.visit_inline, None), (maths.visit_block, None))
    app.connect(
        "autodoc-process-docstring", _on_docstring, priority=1
    )  # before napoleon, which knows only its sections
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Pages:
    """The work that needs a page's origin; connected to Sphinx before it builds.

    Args:
        app: Sphinx.
        sources: all that Sphinx reads.
        repository: the course's address.
    """

    def __init__(self, app: Sphinx, sources: Sources, repository: str) -> None:
        self.app, self.sources, self.repository = app, sources, repository
        self.terms = glossary.terms_of(sources.texts.get("glossary.md", ""))
        app.connect("env-before-read-docs", self._on_begin)
        app.connect("doctree-read", self._on_read)
        app.connect("doctree-resolved", self._on_resolved)
        app.connect("html-page-context", self._on_written)

    def actions(self, page: str) -> str:
        """The links at a page's top: open in Colab (a notebook), slides (a lesson), download, edit."""
        origin = self.sources.origins.get(page)
        if origin is None:
            return ""
        own = posixpath.relpath(f"_files/{posixpath.basename(origin.offered)}", posixpath.dirname(page) or ".")
        links = [f'<a href="{html.escape(own)}" download>Download</a>']
        links += [f'<a href="{self.repository}/edit/main/{origin.edited}">Edit</a>']
        if slides := self.sources.slides.get(page):
            way = posixpath.relpath(slides, posixpath.dirname(page))
            links.insert(0, f'<a href="{html.escape(way)}">Slides of the first sitting</a>')
        if origin.offered.endswith(".ipynb"):
            path = self.repository.removeprefix("https://github.com/")
            colab = f"https://colab.research.google.com/github/{path}/blob/main/{origin.offered}"
            links.insert(0, f'<a href="{colab}">Open in Colab</a>')
        return f'<p class="course-actions">{" ".join(links)}</p>'

    def _on_begin(self, app: Sphinx, env: object, pages: list[str]) -> None:
        """Share the work out: Sphinx gives each process a run of pages, and those of the library are the slow ones."""
        pages[:] = [page for first in range(_SHARES) for page in pages[first::_SHARES]]
        for page in pages:
            folder, _, part = page.partition("/")
            if folder == "api" and part != "index":
                importlib.import_module(names.in_its_package(part))  # once, for all processes: PyTorch takes seconds

    def _on_read(self, app: Sphinx, doctree: nodes.document) -> None:
        for link in [each for each in doctree.findall(pending_xref) if each.get("refdomain") == "py"]:
            target = link.get("reftarget", "").rpartition(".")[2]
            if hasattr(builtins, target) or target.islower():  # Python's own, or a word that only looks like a type:
                link.replace_self(link.children)  # a search is slow, and finds some attribute of that name
        for table in doctree.findall(nodes.table):
            _drop_empty_head(table)
        page = app.env.docname
        if page.startswith("lessons/") and page in self.sources.origins:
            glossary.link_first_uses(doctree, self.terms, "../glossary.html")

    def _on_resolved(self, app: Sphinx, doctree: nodes.document, page: str) -> None:
        """Link the library's names, now that every page is read and each name's place is known."""
        if page.startswith("lessons/") and page in self.sources.origins:
            known = app.env.domains.python_domain.objects
            way = app.builder.get_relative_uri
            places = {name: f"{way(page, entry.docname)}#{entry.node_id}" for name, entry in known.items()}
            names.link_first_uses(doctree, names.imported(json.loads(self.sources.texts[f"{page}.ipynb"])), places)

    def _on_written(self, app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
        if "body" in context:
            first, title, rest = context["body"].partition("</h1>")
            rest = _EMPTY_HEAD.sub("<td></td>", rest)
            context["body"] = first + title + self.actions(page) + rest
        if page in self.sources.scripts:
            app.add_js_file(f"widgets/{page}.js", priority=400)


def _on_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = reference.rest_of(lines)


def _drop_empty_head(table: nodes.table) -> None:
    """Drop the head of a table of facts, which Markdown makes of empty cells."""
    for head in list(table.findall(nodes.thead)):
        if not head.astext().strip():
            head.parent.remove(head)
