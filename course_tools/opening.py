"""`course open`: JupyterLab, opened at a lesson or a lab."""

from __future__ import annotations

import os
import sys
import webbrowser

from course_tools.labs import Lab
from course_tools.lessons import Lesson


def jupyterlab_arguments(lesson: Lesson | Lab, *, browser: bool) -> list[str]:
    """JupyterLab's command line: the course's folder, the lesson in front, little noise in the terminal.

    Jupyter always prints the address with its token, so a reader without a browser on this machine can copy it.
    """
    arguments = [
        f"--ServerApp.root_dir={lesson.root}",
        f"--LabApp.default_url=/lab/tree/{lesson.notebook.relative_to(lesson.root).as_posix()}",
        "--ServerApp.answer_yes=True",  # Ctrl-C stops it at once
        "--ServerApp.log_level=ERROR",
        "--LabApp.log_level=ERROR",
        "--LabApp.news_url=None",
    ]
    if not browser or not browser_opens():
        arguments.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # in a container, say
        arguments.append("--allow-root")
    return arguments


def browser_opens() -> bool:
    """Whether this machine has a browser with a window (a text browser cannot show JupyterLab)."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def open_notebook(lesson: Lesson | Lab, *, browser: bool = True) -> None:
    """Run JupyterLab in this process until it is stopped.

    Raises:
        ValueError: the lesson has no notebook yet.
    """
    if not lesson.notebook.exists():
        raise ValueError(f"{lesson.name} has not been built yet: run `course build {lesson.number}`")
    from jupyterlab.labapp import LabApp

    os.chdir(lesson.root)
    print(f"JupyterLab starts at {lesson.notebook.name}. Ctrl-C stops it.", flush=True)
    LabApp.launch_instance(jupyterlab_arguments(lesson, browser=browser))
