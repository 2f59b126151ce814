"""A stored notebook as a page: explorers that live without a kernel, figures with their words."""

from __future__ import annotations

import base64
import copy
import hashlib
import html
import json
import re
from dataclasses import dataclass, field
from typing import Any

from course_tools.site.maths import mathml

VIEW = "application/vnd.jupyter.widget-view+json"
_STATE = "application/vnd.jupyter.widget-state+json"
_BADGE = re.compile(r"\[!\[Open in Colab\].*?\)\]\(.*?\)\n*")
_RERUN = r"If nothing reacts(?: to your clicks)?,\s+run\s+the\s+cell\s+once\."
_NEEDS_KERNEL = re.compile(rf"\({_RERUN}\) ?|{_RERUN}\s+")
"""Words that are true in Jupyter only: on a page, explorers are alive already."""
_CAPTION_MATH = re.compile(r"\$([^$<>]+)\$")
_CAPTION = '<div style="max-width:'


@dataclass
class Page:
    """A notebook as a page of the site.

    Attributes:
        notebook: the notebook that Sphinx reads.
        figures: file name → PNG.
        script: JavaScript with the states and scripts of the page's widgets; empty if there are none.
    """

    notebook: dict[str, Any]
    figures: dict[str, bytes] = field(default_factory=dict)
    script: str = ""


def page_of(stored: dict[str, Any], name: str, up: str = "../") -> Page:
    """The page of a notebook that is called `name`.

    Args:
        stored: the notebook, as JSON.
        name: prefix of the figures' file names.
        up: the way from the page to the site's root.

    Raises:
        ValueError: the notebook shows a widget of which it holds no state.
    """
    page = Page(copy.deepcopy(stored))
    states = page.notebook["metadata"].pop("widgets", {}).get(_STATE, {}).get("state", {})
    page.notebook["cells"] = [cell for cell in page.notebook["cells"] if not _is_for_colab(cell)]
    shown: list[str] = []
    for cell in page.notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _NEEDS_KERNEL.sub("", _BADGE.sub("", "".join(cell["source"])))
            continue
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "remove-input"]
        for output in cell["outputs"]:
            if "data" in output:
                output["data"] = _data(output, page, f"{up}_figures/{name}", shown)
    if missing := [model for model in shown if model not in states]:
        raise ValueError(f"{name} shows {len(missing)} widgets without their state; run `course build`")
    if shown:
        page.script = script_of({model: states[model]["state"] for model in shown})
    return page


def script_of(models: dict[str, dict[str, Any]]) -> str:
    """The widgets of one page as JavaScript; a script or sheet that several have in common stands there once."""
    texts: list[str] = []
    packed: dict[str, dict[str, Any]] = {}
    for name, state in models.items():
        kept = {
            key: value for key, value in state.items() if key not in ("_esm", "_css") and not key.startswith("_view")
        }
        for key in ("_esm", "_css"):
            text = state.get(key, "")
            if text not in texts:
                texts.append(text)
            kept[key] = texts.index(text)
        packed[name] = kept
    data = json.dumps({"texts": texts, "models": packed}, separators=(",", ":"), ensure_ascii=False)
    return f"window.courseWidgets = {data};\n"


def lacks_outputs(stored: dict[str, Any]) -> bool:
    """Whether this notebook was never run."""
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    return bool(code) and not any(cell["outputs"] for cell in code)


def _is_for_colab(cell: dict[str, Any]) -> bool:
    text = "".join(cell["source"])
    return cell["cell_type"] == "code" and 'if "google.colab" in sys.modules' in text


def _data(output: dict[str, Any], page: Page, address: str, shown: list[str]) -> dict[str, Any]:
    """The forms of one output that the page is to choose from: HTML where there is any."""
    data = output["data"]
    picture = _picture(output, page, address) if "image/png" in data else ""
    if VIEW in data:
        model = data[VIEW]["model_id"]
        shown.append(model)
        words = html.escape("".join(data.get("text/plain", "")))
        still = picture or f"<p>{words}</p>"
        return {"text/html": f'<div class="course-widget" data-model="{model}"><noscript>{still}</noscript></div>'}
    if picture:
        return {"text/html": picture}
    if "text/html" in data and (text := "".join(data["text/html"])).startswith(_CAPTION):
        return {"text/html": _CAPTION_MATH.sub(lambda found: mathml(html.unescape(found[1])), text)}
    return data


def _picture(output: dict[str, Any], page: Page, address: str) -> str:
    """An `<img>` with the figure's words; the figure itself goes to a file that is named after its content.

    A click opens the file: in a narrow window its letters are small.
    """
    png = base64.b64decode("".join(output["data"]["image/png"]))
    about = output.get("metadata", {}).get("image/png", {})
    words = about.get("alt") or "".join(output["data"].get("text/plain", ""))
    file = f"-{hashlib.sha256(png).hexdigest()[:12]}.png"
    page.figures[address.rpartition("/")[2] + file] = png
    width, height = (int.from_bytes(png[at : at + 4]) // 2 for at in (16, 20))  # drawn at two pixels for one
    size = f'width="{width}" height="{height}" loading="lazy"'
    img = f'<img class="course-figure" src="{address}{file}" alt="{html.escape(words)}" {size}>'
    return f'<a href="{address}{file}" title="Open the figure alone">{img}</a>'
