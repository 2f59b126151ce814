"""TeX to MathML when the site is built: browsers set it without a script, and screen readers read it.

docutils brings the translator; MathJax would be a megabyte of script, or another host.
"""

from __future__ import annotations

import re

from docutils.nodes import SkipNode, math, math_block
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

_SAME = (  # a form that the translator does not know → the same in another form
    (re.compile(r"…|\\dots\b"), r"\\ldots "),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\big(?=[(\[{|])"), r"\\bigl"),
    (re.compile(r"\\big(?=[)\]}])"), r"\\bigr"),
)


def mathml(tex: str, *, block: bool = False) -> str:
    """A formula as MathML.

    Raises:
        ValueError: the formula uses a command that is not known.
    """
    for known, other in _SAME:
        tex = known.sub(other, tex)
    try:
        return tex2mathml(tex, as_block=block)
    except MathError as problem:
        raise ValueError(f"this formula cannot be translated to MathML ({problem}): {tex}") from None


def visit_inline(writer: HTML5Translator, node: math) -> None:
    """Write a formula inside a line. Sphinx calls this function, which then ends Sphinx's work on the node."""
    writer.body.append(_checked(node))
    raise SkipNode


def visit_block(writer: HTML5Translator, node: math_block) -> None:
    """Write a formula that stands alone."""
    writer.body.append(f'<div class="math-block">{_checked(node)}</div>\n')
    raise SkipNode


def _checked(node: math | math_block) -> str:
    try:
        return mathml(node.astext(), block=isinstance(node, math_block))
    except ValueError as problem:
        raise ExtensionError(str(problem)) from None
