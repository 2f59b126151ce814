"""The look of figures: colours that everyone can tell apart, bytes that repeat, captions that cannot be forgotten."""

import base64
import itertools
import struct
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb
from nbconvert import HTMLExporter

from course_kit.accounts import CATEGORIES
from course_kit.notebook import picture as style
from course_kit.notebook.picture import PALETTE, SERIES, Picture, new_figure, series_color

# Machado, Oliveira and Fernandes 2009, Table 1, severity 1.0; on linear RGB.
DEFICIENCIES = {
    "none": (1, 0, 0, 0, 1, 0, 0, 0, 1),
    "protanopia": (0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998),
    "deuteranopia": (0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881),
    "tritanopia": (1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900),
}


def linear(color: str) -> np.ndarray:
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB, D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """What was displayed, in order."""
    outputs: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: outputs.append(SimpleNamespace(data=data, **rest)))
    return outputs


@pytest.mark.parametrize("vision", DEFICIENCIES)
@pytest.mark.parametrize("names", [CATEGORIES, None, ("guess", "predicted", "measured")], ids=str)
def test_colors_can_be_told_apart(names: tuple[str, ...] | None, vision: str) -> None:
    colors = [PALETTE[name] for name in names] if names else SERIES
    seen = [lab(np.reshape(DEFICIENCIES[vision], (3, 3)) @ linear(color)) for color in colors]
    nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
    assert nearest > 10, f"two colours look alike with {vision}: {nearest:.1f}"


@pytest.mark.parametrize("color", [style.INK, style.MUTED])
def test_text_has_contrast_on_white(color: str) -> None:
    luminance = float(np.array([0.2126, 0.7152, 0.0722]) @ linear(color))
    assert 1.05 / (luminance + 0.05) >= 4.5


def test_series_repeat_after_eight_and_axes_come_in_reading_order() -> None:
    assert [series_color(rank) for rank in range(9)] == [*SERIES, SERIES[0]]
    figure, axes = new_figure(rows=2, columns=3, height=4)
    figure.draw_without_rendering()
    corners = [(-round(each.get_position().y0, 2), round(each.get_position().x0, 2)) for each in axes]
    assert corners == sorted(corners)
    assert len(axes) == 6


def drawing() -> style.Figure:
    figure, (axes,) = new_figure(height=2)
    axes.plot([0, 1, 2], [1, 3, 2], label="loss")
    axes.set(title="A line", xlabel="step", ylabel="nats per byte")
    axes.legend()
    return figure


def png(figure: style.Figure) -> bytes:
    return Picture(figure, caption="c", alt="a").png


def test_the_same_drawing_gives_the_same_bytes_and_no_metadata() -> None:
    picture = png(drawing())
    assert picture == png(drawing())
    assert struct.unpack(">I", picture[16:20]) == (2 * style.WIDTH_PX,)
    for chunk in (b"tEXt", b"iTXt", b"tIME"):
        assert chunk not in picture


def test_figures_leave_no_trace_in_pyplot() -> None:
    """In a process of its own, because another test may have imported pyplot."""
    code = (
        "import sys, matplotlib; look = lambda: dict(dict.items(matplotlib.rcParams)); before = look()\n"
        "from course_kit.notebook.picture import Picture, new_figure\n"
        "Picture(new_figure()[0], caption='c', alt='a').png\n"
        "assert 'matplotlib.pyplot' not in sys.modules and look() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("way", [Picture.show, DisplayFormatter().format], ids=["show", "last expression"])
def test_a_picture_is_shown_and_then_its_caption(shown: list[SimpleNamespace], way: Callable[[Picture], Any]) -> None:
    figure = drawing()
    expected = base64.b64encode(png(drawing())).decode()
    way(Picture(figure, caption="Loss falls & stays <low>: $x^2$.", alt='A line from 1 to "2".'))
    picture, caption = shown
    assert picture.data == {"image/png": expected, "text/plain": 'A line from 1 to "2".'}
    assert picture.metadata == {"image/png": {"width": 720, "alt": 'A line from 1 to "2".'}}
    assert "Loss falls &amp; stays &lt;low&gt;: $x^2$." in caption.data["text/html"]
    assert 'A line from 1 to "2".' in caption.data["text/html"]
    assert not figure.axes


REFUSED = {
    "no rows": (lambda: new_figure(rows=0), "at least one row"),
    "less than no columns": (lambda: new_figure(columns=-1), "at least one row"),
    "no height": (lambda: new_figure(height=0), "at least one row"),
    "no caption": (lambda: Picture(drawing(), caption=" ", alt="What is there."), "needs a caption"),
    "no alt text": (lambda: Picture(drawing(), caption="What to see.", alt=" "), "needs a alt"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_impossible_sizes_and_figures_without_words_are_refused(shown: list[SimpleNamespace], what: str) -> None:
    call, words = REFUSED[what]
    with pytest.raises(ValueError, match=words):
        call()
    assert not shown


def test_a_picture_can_be_shown_twice_and_travels_with_its_widget(shown: list[SimpleNamespace]) -> None:
    picture = Picture(drawing(), caption="c", alt="a")
    picture.show()
    picture.show()
    assert shown[0] == shown[2] and shown[1] == shown[3]
    Picture(drawing(), caption="c", alt="a").show(widget=SimpleNamespace(model_id="abc"))
    assert shown[4].data["application/vnd.jupyter.widget-view+json"]["model_id"] == "abc"
    assert shown[4].data["image/png"]


@pytest.mark.parametrize("template", ["lab", "classic"])
def test_a_static_page_has_caption_and_words(shown: list[SimpleNamespace], template: str) -> None:
    Picture(drawing(), caption="Loss falls.", alt="One line, falling.").show()
    new = nbformat.v4.new_output
    outputs = [new("display_data", data=each.data, metadata=getattr(each, "metadata", {})) for each in shown]
    cell = nbformat.v4.new_code_cell("plot()", outputs=outputs, execution_count=1)
    page, _ = HTMLExporter(template_name=template).from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert "<em>Loss falls.</em>" in page
    assert "<small>One line, falling.</small>" in page
    assert ('alt="One line, falling."' in page) == (template == "classic")  # when "lab" learns it: fold less away
