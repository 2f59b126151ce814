"""`course site`: write Sphinx's sources, run it, and refuse a site with a leak, a dead link or another host.

Why Sphinx with MyST-NB, and not Jupyter Book 2: where a page of the latter (2.1.7) has a stored widget, it says that "a
Jupyter kernel connection is required" (mystmd's issue 449 and myst-theme's 428, both open in November 2026), and its
build asks api.mystmd.org for the theme. Here explorers live on their stored states, and nothing is fetched.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from course_tools import TAUGHT
from course_tools.author.release import find_leaks
from course_tools.author.source import repository_url, split_tag
from course_tools.labs import Lab
from course_tools.lessons import Lesson
from course_tools.site import links
from course_tools.site.sources import GUIDES, Sources, sources_of

STATIC = Path(__file__).parent / "static"
SETTINGS: dict[str, Any] = {
    "project": "Bigger Than One GPU",
    "root_doc": "index",
    "extensions": [
        "myst_nb",
        "sphinx.ext.autodoc",
        "sphinx.ext.napoleon",
        "sphinx.ext.viewcode",
        "course_tools.site.extension",
    ],
    "html_theme": "pydata_sphinx_theme",
    "html_title": "Bigger Than One GPU",
    "html_static_path": [str(STATIC)],
    "html_css_files": ["site.css"],
    "html_js_files": [("site.js", {"defer": "defer"})],
    "html_math_renderer": "mathml",
    "html_copy_source": False,
    "html_use_index": False,  # no page leads to an index of names: there are the search and the reference
    "html_domain_indices": False,
    "html_show_sourcelink": False,
    "html_context": {"default_mode": "auto"},
    "html_sidebars": {page: [] for page in ("index", *GUIDES.values())},  # no section lists them
    "html_theme_options": {
        "logo": {"text": "Bigger Than One GPU"},
        "navbar_align": "left",
        "header_links_before_dropdown": 6,
        "show_prev_next": True,
        "secondary_sidebar_items": ["page-toc"],
        "primary_sidebar_end": [],
        "footer_start": [],
        "footer_end": [],
        "show_toc_level": 2,
        "pygments_light_style": "a11y-high-contrast-light",
        "pygments_dark_style": "a11y-high-contrast-dark",
    },
    "nb_execution_mode": "off",
    "nb_merge_streams": True,
    "nb_ipywidgets_js": {},  # widgets are ours to draw; the default is another host
    "nb_code_prompt_show": "Show {type}",
    "nb_code_prompt_hide": "Hide {type}",
    "myst_enable_extensions": ["dollarmath"],
    "myst_heading_anchors": 3,
    "autodoc_member_order": "bysource",
    "autodoc_typehints_format": "short",
    "autodoc_inherit_docstrings": False,
    "autodoc_use_type_comments": False,  # there are none, and to look for them takes a sixth of the time
    # A name in an annotation that two modules have; a ✗ in a traceback, which the lexer does not know.
    "suppress_warnings": ["ref.python", "misc.highlighting_failure"],
    "default_role": "code",
    "napoleon_use_ivar": True,
    "viewcode_follow_imported_members": False,  # each name is documented where it is defined
}


def build_site(
    root: Path, lessons: Sequence[Lesson], labs: Sequence[Lab], destination: Path, console: Console,
    *, library: bool = True,
) -> dict[str, float]:  # fmt: skip
    """Build the site of the course at `root` into a folder, whole or not at all.

    Args:
        root: the checkout.
        lessons: the lessons that get a page.
        labs: the labs that get one.
        destination: the folder; an earlier site in it is replaced.
        console: gets a line for each phase.
        library: whether the library's reference, which takes most of the time, is on the site.

    Returns:
        The seconds of each phase.

    Raises:
        ValueError: Sphinx is not installed, a notebook has no outputs, `destination` holds something else, or the pages
            have a dead link or would ask another host.
    """
    need_sphinx()
    destination = destination.resolve()
    if destination.exists() and any(destination.iterdir()) and not (destination / "searchindex.js").exists():
        raise ValueError(f"{destination} holds something that is no site; name another folder")
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="course-site-") as folder, console.status("Reading notebooks") as status:
        begin = time.perf_counter()
        repository, _ = split_tag(repository_url(root))
        _refuse_leaks(root, labs)
        sources = sources_of(root, lessons, labs, repository, library=library)
        source, out = Path(folder) / "source", Path(folder) / "out"
        _write(source, {f"{path}": text.encode() for path, text in sources.texts.items()})
        _write(source, {path: content for path, content in sources.assets.items() if path.startswith("_static/")})
        seconds["notebooks"] = time.perf_counter() - begin
        status.update("Sphinx reads and writes the pages")
        _run_sphinx(Path(folder), sources, repository)
        seconds["pages"] = time.perf_counter() - begin - sum(seconds.values())
        _write(out, {path: content for path, content in sources.assets.items() if not path.startswith("_static/")})
        status.update("Following every link")
        if problems := links.problems(out):
            raise ValueError("nothing was written, because of\n" + "\n".join(f"  {each}" for each in problems[:20]))
        seconds["links"] = time.perf_counter() - begin - sum(seconds.values())
        shutil.rmtree(destination, ignore_errors=True)
        shutil.copytree(out, destination)
    return seconds


def _run_sphinx(folder: Path, sources: Sources, repository: str) -> None:
    """Run Sphinx over `folder`/source.

    Raises:
        ValueError: Sphinx warned; the message holds the warnings.
    """
    from sphinx.application import Sphinx
    from sphinx.util.console import strip_colors
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    from course_tools.site.extension import Pages

    said = io.StringIO()
    settings = {**SETTINGS, "html_static_path": [str(STATIC), str(folder / "source" / "_static")]}
    with patch_docutils(), docutils_namespace(), warnings.catch_warnings(), _hurried():
        for kind in (DeprecationWarning, PendingDeprecationWarning):  # MyST's, of things that a later Sphinx drops
            warnings.simplefilter("ignore", kind)
        app = Sphinx(
            folder / "source", None, folder / "out", folder / "trees", "html", settings,
            status=None, warning=said, parallel=os.cpu_count() or 1,
        )  # fmt: skip
        Pages(app, sources, repository)
        app.build()
    if words := strip_colors(said.getvalue()).strip():
        raise ValueError(f"nothing was written, because Sphinx says\n{words}")


@contextlib.contextmanager
def _hurried() -> Iterator[None]:
    """Collect garbage more rarely while Sphinx works, and make no records for debugging, which no one reads."""
    often = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    logging.disable(logging.DEBUG)
    try:
        yield
    finally:
        gc.set_threshold(*often)
        logging.disable(logging.NOTSET)


def _refuse_leaks(root: Path, labs: Sequence[Lab]) -> None:
    """Look for anything hidden in the sources of the pages.

    Raises:
        ValueError: something hidden is there.
    """
    files = [lab.notebook for lab in labs] + [root / file for file in GUIDES if (root / file).exists()]
    files += sorted(path for package in TAUGHT for path in (root / package).rglob("*.py"))
    with_sources = [lab for lab in labs if lab.source.exists()]
    if leaks := list(find_leaks({path.relative_to(root): path.read_bytes() for path in files}, with_sources)):
        raise ValueError("nothing was written, because readers would see\n" + "\n".join(f"  {leak}" for leak in leaks))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def need_sphinx() -> None:
    """Look for the packages with which pages and slides are made.

    Raises:
        ValueError: some are missing; the message names the packages to install.
    """
    from importlib.util import find_spec

    missing = [name for name in ("sphinx", "myst_nb", "pydata_sphinx_theme") if not find_spec(name)]
    if missing:
        raise ValueError(f"this command needs {', '.join(missing)}: pip install 'bigger-than-one-gpu[site]'")
