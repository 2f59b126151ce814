"""One look for every figure, and the `Picture` that carries it: a caption below, and words for readers who cannot see.

A drawing function asks for `new_figure(...)`, draws on plain matplotlib axes and returns a `Picture`, whose `caption`
and `alt` it takes as keywords. Nothing here touches pyplot, so no figure stays open behind a cell.

    figure, (axes,) = new_figure(height=2.6)
    axes.barh(["Adam"], [24], color=PALETTE["optimizer"])
    Picture(figure, caption="Adam's state is three times the size of the weights.", alt="One bar, 24 GB long.")

Colours are Okabe and Ito's (2008), chosen so that readers with any common colour-vision deficiency tell them apart;
two greys and an indigo (Tol 2021) stand for the black and yellow that would be lost on a white page.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from cycler import cycler
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#332288")
"""One colour for each rank, or each line of a plot, in this order. Use them through `series_color`."""

STYLES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
"""One dash pattern for each line of a plot, beside its colour: no reader must need colours to tell lines apart."""

PALETTE = {
    "parameters": "#0072B2",
    "gradients": "#009E73",
    "optimizer": "#E69F00",
    "activations": "#CC79A7",
    "temporaries": "#5F5F5F",
    "sign": "#D55E00",
    "exponent": "#0072B2",
    "fraction": "#009E73",
    "guess": "#7A7A7A",
    "predicted": "#0072B2",
    "measured": "#D55E00",
}
"""A thing keeps its colour from the first lesson to the last: memory by category, the fields of a float, and
guess, prediction and measurement."""

INK, MUTED, GRID = "#1F2328", "#59636E", "#DDE1E6"
"""Text, secondary text, and lines that should step back."""

PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1}
"""The box (`bbox`) behind words that a line may pass through."""

WIDTH_PX = 720
"""Width of a figure on the page, in CSS pixels: it fits beside a notebook's prompt column."""

_CSS_DPI = 96  # at this many CSS pixels an inch, a 10-point font is 13 pixels high: as tall as notebook code
_PIXELS_PER_CSS_PIXEL = 2  # sharp on a high-density screen


def series_color(index: int) -> str:
    """The colour of rank or series number `index`; after eight the colours repeat."""
    return SERIES[index % len(SERIES)]


def line_look(index: int) -> dict[str, Any]:
    """Colour and dashes of line number `index`, as keywords for `plot`."""
    return {"color": series_color(index), "linestyle": STYLES[index % len(STYLES)]}


def note(axes: Axes, words: str, at: tuple[Any, Any], offset: tuple[float, float] = (0, 3), **look: Any) -> None:
    """Write words beside a point of the data, `offset` (points right, points up) away from it."""
    axes.annotate(words, at, offset, textcoords="offset points", **{"color": INK, "size": 9.5} | look)


def legend(figure: Figure, side: str, columns: int, colors: Mapping[str, str] | None = None, **look: Any) -> None:
    """Draw one legend for the whole figure, outside of its axes; `side` is "lower center", "upper right" or the like.

    The legend has the lines and bars that have a label; or a patch for each of `colors`, words → colour.
    """
    loc: Any = f"outside {side}"
    if colors:
        look["handles"] = [Patch(facecolor=color, label=words) for words, color in colors.items()]
    figure.legend(loc=loc, ncols=columns, frameon=False, **look)


def new_figure(rows: int = 1, columns: int = 1, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """An empty figure in the course's style, as wide as the page.

    Args:
        rows: number of rows of axes.
        columns: number of columns of axes.
        height: height of the whole figure in inches (the width is 7.5).

    Returns:
        The figure and its axes in reading order, left to right and then down. One axes is a list of one:
        `figure, (axes,) = new_figure()`.

    Raises:
        ValueError: a number is not positive.
    """
    if rows < 1 or columns < 1 or height <= 0:
        raise ValueError(
            f"new_figure needs at least one row, one column and a positive height in inches; "
            f"given rows={rows}, columns={columns}, height={height}"
        )
    figure = Figure(figsize=(WIDTH_PX / _CSS_DPI, height), dpi=_CSS_DPI, layout="constrained", facecolor="white")
    axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for each in axes:
        _style(each)
    return figure, axes


class Picture:
    """A figure, its caption and its words. As the last expression of a cell it shows itself; elsewhere, `.show()` it.

    A picture has two outputs: the PNG as `image/png` with its alternative text in the metadata, then the caption
    (of one output a page shows one form, so picture and caption cannot share it). JupyterLab, and HTML exports in its
    look, drop the alternative text of pictures; therefore the same words also stand below the caption, folded away
    under "In words".

    Args:
        figure: any matplotlib figure, which is empty once the picture is shown: a cell's `Out` holds only the PNG.
        caption: the point of the figure, always visible; TeX may stand between dollar signs.
        alt: the figure told to a reader who cannot see: the drawing and the numbers that matter.

    Raises:
        ValueError: the caption or the alternative text is missing.
    """

    def __init__(self, figure: Figure, *, caption: str, alt: str) -> None:
        for name, text in (("caption", caption), ("alt", alt)):
            if not text.strip():
                raise ValueError(f"a picture needs a {name}, given {text!r}; write one sentence that says what to see")
        self.figure, self.caption, self.alt = figure, caption, alt

    @cached_property
    def png(self) -> bytes:
        """A PNG of 1440 pixels across; the same drawing gives the same bytes (no date, no version inside).

        The PNG is drawn on first use, and the figure emptied.
        """
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=_CSS_DPI * _PIXELS_PER_CSS_PIXEL, metadata={"Software": None})
        self.figure.clear()
        return buffer.getvalue()

    def show(self, widget: Any = None) -> None:
        """Show the picture as this cell's output, its caption below it.

        Args:
            widget: an ipywidget to show in the picture's place wherever a kernel or its saved state can drive it; the
                picture is then for static viewers.
        """
        bundle: dict[str, Any] = {"image/png": base64.b64encode(self.png).decode("ascii"), "text/plain": self.alt}
        if widget is not None:
            view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
            bundle["application/vnd.jupyter.widget-view+json"] = view
        display(bundle, raw=True, metadata={"image/png": {"width": WIDTH_PX, "alt": self.alt}})
        display({"text/html": _caption_html(self.caption, self.alt), "text/plain": self.caption}, raw=True)

    _ipython_display_ = show


def _caption_html(caption: str, alt: str) -> str:
    """Caption and folded description. Plain tags, because GitHub and untrusted notebooks strip most styling."""
    return (
        f'<div style="max-width: {WIDTH_PX}px">'
        f'<p style="margin: 4px 0"><em>{html.escape(caption, quote=False)}</em></p>'
        f"<details><summary><small>In words</small></summary>"
        f"<p><small>{html.escape(alt, quote=False)}</small></p></details></div>"
    )


def _style(axes: Axes) -> None:
    """Two spines, a quiet grid behind the data, and the course's colours in order."""
    axes.set_prop_cycle(cycler(color=SERIES))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=9.5)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for label in (axes.title, axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
