"""What explorers send to the browser: a script and a style sheet, one text each.

What all of them share (`explorer.js`, `explorer.css`) stands above what is an explorer's own. The widget carries the
whole text, and so does a notebook that stores it: a page without Python needs no file besides.

No lesson opens this module.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def script(*names: str) -> str:
    """The shared script, and after it `<name>.js` of each name, as one module of JavaScript."""
    return "\n".join((_HERE / f"{name}.js").read_text("utf-8") for name in ("explorer", *names))


def style(name: str) -> str:
    """The shared style sheet, and after it `<name>.css`."""
    return "\n".join((_HERE / f"{each}.css").read_text("utf-8") for each in ("explorer", name))
