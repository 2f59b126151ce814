"""The glossary's page, and a link to it from the first use of each of its words in a lesson."""

from __future__ import annotations

import re
from dataclasses import dataclass

from docutils import nodes

_ENTRY = re.compile(r"^\*\*(.+?)\.\*\* +(.+)$", re.MULTILINE)
_PASSED_BY = (nodes.reference, nodes.literal, nodes.title, nodes.math, nodes.raw, nodes.literal_block, nodes.table)
"""Nodes in which a word is code, a heading, in a table, or a link already."""
SHORT = 40
"""Characters. A shorter sentence does not yet explain its word."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_PLAIN = (
    (r"\\bar f", "f̄"),
    (r"\\beta", "β"),
    (r"\\text\{(.+?)\}", r"\1"),
    (r"\\log_2", "log₂"),
    (r"\\cdot", "·"),
    (r"\\approx", "≈"),
    (r"\\(log|sum|exp)", r"\1"),
)


@dataclass(frozen=True)
class Term:
    """One entry of the glossary.

    Attributes:
        anchor: the entry's anchor on the page.
        words: the words that the entry explains.
        meaning: the entry's first sentence, in plain characters.
    """

    anchor: str
    words: tuple[str, ...]
    meaning: str


def terms_of(text: str) -> list[Term]:
    """The entries of GLOSSARY.md: paragraphs that begin with a word in bold and a full stop inside it."""
    found = []
    for name, rest in _ENTRY.findall(text):
        aside = re.findall(r"\((?!of |on )([^)]+)\)", name)
        words = [word.strip() for part in [re.sub(r"\(.*?\)", "", name), *aside] for word in part.split(",")]
        found.append(Term(_anchor(name), tuple(words), _begin_of(rest)))
    return found


def _begin_of(text: str) -> str:
    """The first sentence without marks, and the next one where that is as short as "One send."."""
    first, *more = re.split(r"(?<=\.) (?=[A-Z*`\"$])", text)
    sentences = [first, *more[:1]] if len(first) < SHORT else [first]
    return re.sub(r"[*`]", "", re.sub(r"\$(.+?)\$", lambda formula: _in_a_line(formula[1]), " ".join(sentences)))


def _in_a_line(tex: str) -> str:
    """A short formula in plain characters, for a hint that shows no markup."""
    for known, plain in _PLAIN:
        tex = re.sub(known, plain, tex)
    return re.sub(r"\^\{?(\d+)\}?", lambda power: power[1].translate(_RAISED), tex)


def page_of(text: str) -> str:
    """GLOSSARY.md with an anchor before each entry."""
    return _ENTRY.sub(lambda entry: f"({_anchor(entry[1])})=\n{entry[0]}", text)


def link_first_uses(doctree: nodes.document, terms: list[Term], address: str) -> int:
    """Make the first use of each term in running text a link; return the number of links.

    Args:
        doctree: one page, changed in place.
        terms: the glossary.
        address: the glossary's page, as seen from this one.
    """
    by_word = {word.lower(): term for term in terms for word in term.words}
    words = "|".join(re.escape(word) for word in sorted(by_word, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])({words})(s?)(?![\w-])", re.IGNORECASE)
    used: set[str] = set()
    for text in list(doctree.findall(nodes.Text)):
        if not _is_passed_by(text):
            _link(text, pattern, by_word, used, address)
    return len(used)


def _link(text: nodes.Text, pattern: re.Pattern[str], terms: dict[str, Term], used: set[str], address: str) -> None:
    parts: list[nodes.Node] = []
    done = 0
    for match in pattern.finditer(text):
        term = terms[match[1].lower()]
        if term.anchor in used:
            continue
        used.add(term.anchor)
        link = nodes.reference("", match[0], refuri=f"{address}#{term.anchor}", internal=True, classes=["term"])
        link["reftitle"] = term.meaning
        parts += [nodes.Text(text[done : match.start()]), link]
        done = match.end()
    if parts:
        text.parent.replace(text, [*parts, nodes.Text(text[done:])])


def _is_passed_by(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, _PASSED_BY) or "cell_input" in node.get("classes", []):  # type: ignore[attr-defined]
            return True
    return False


def _anchor(name: str) -> str:
    return "term-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
