"""Make an executed notebook the same to the byte, on every machine and at any time.

Without this module, each run leaves its own widget ids, memory addresses, process ids and folders in the file, and no
diff would ever be empty.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_tools.author.source import NOTEBOOK_METADATA
from course_tools.kernel import widget_state

_MODEL = re.compile(r"IPY_MODEL_([0-9a-f]{32})")
_ID = re.compile(r"\b[0-9a-f]{32}\b|(?<=IPY_MODEL_)[0-9a-f]{32}")
_VIEW = "application/vnd.jupyter.widget-view+json"


def stabilise(notebook: NotebookNode, name: str, root: Path) -> NotebookNode:
    """A copy of an executed notebook without anything that differs between two runs.

    Args:
        notebook: the notebook as nbclient left it.
        name: the lesson's name, which seeds the new widget ids.
        root: the checkout, whose path is cut from tracebacks.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = merge_streams(cell.outputs)
            _cut_paths(cell.outputs, root)
    for key, value in NOTEBOOK_METADATA.items():
        notebook.metadata[key] = nbformat.from_dict(value)
    ids = _renumbered(notebook, name)
    text = _ID.sub(lambda match: ids.get(match[0], match[0]), nbformat.writes(notebook))
    text = re.sub(r"( at 0x)[0-9a-fA-F]{6,16}\b", r"\g<1>0", text)
    text = re.sub(r"(ipykernel_)\d+(/\d+\.py)", r"\g<1>0\2", text)
    stable = nbformat.reads(text, as_version=4)
    if widget_state(stable):
        widgets = stable.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]
        widgets["state"] = nbformat.from_dict(dict(sorted(widgets["state"].items())))
    return stable


def merge_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Merge the outputs of each stream at the first one's place: the cut of prints into messages depends on luck."""
    merged: list[NotebookNode] = []
    streams: dict[str, NotebookNode] = {}
    for output in outputs:
        if output.output_type == "stream" and output.name in streams:
            streams[output.name].text += output.text
            continue
        if output.output_type == "stream":
            streams[output.name] = output
        merged.append(output)
    return merged


def _cut_paths(outputs: list[NotebookNode], root: Path) -> None:
    """Shorten the file names in tracebacks to paths in the checkout, in a package, in the standard library."""
    folders = [str(root), sysconfig.get_path("stdlib"), sys.prefix]
    folders += ["~" + folder.removeprefix(str(Path.home())) for folder in folders]  # as IPython writes them
    known = "|".join(re.escape(folder) for folder in sorted(folders, key=len, reverse=True))
    pattern = re.compile(rf"[^\s\"'\x1b]*/(?:site|dist)-packages/|(?:{known})/")
    for output in outputs:
        if output.output_type == "error":
            output.traceback = [pattern.sub("", line) for line in output.traceback]


def _renumbered(notebook: NotebookNode, name: str) -> dict[str, str]:
    """Old widget id → new one: numbered from the displayed widgets down, in the order of the cells."""
    state = widget_state(notebook)
    order: dict[str, str] = {}

    def visit(model_id: str) -> None:
        if model_id not in order:
            order[model_id] = hashlib.md5(f"{name}:{len(order)}".encode(), usedforsecurity=False).hexdigest()
            for child in _MODEL.findall(json.dumps(state.get(model_id, {}), sort_keys=True)):
                visit(child)

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if _VIEW in output.get("data", {}):
                visit(output["data"][_VIEW]["model_id"])
    for model_id in sorted(set(state) - set(order), key=lambda i: _ID.sub("", json.dumps(state[i], sort_keys=True))):
        visit(model_id)
    return order
