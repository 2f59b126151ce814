"""The format of known-wrong answers: what an edit finds, what it puts there, and what it says where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from .faults import Fault, cover, parse, read_faults

FILE = Path("tests/mutants/lab20/q1.diff")
SOLUTION = {
    "q1": '''\
class Sum:
    """A sum."""

    def __init__(self):
        """Begin."""
        self.total = 0

    def add(self, number):
        """One more."""
        if number:
            self.total += number
            self.last = number  # kept
        return self.total

    def clear(self):
        self.total = 0
''',
    "q1-mean": "def mean(numbers):\n    return sum(numbers) / len(numbers)\n",
    "q2": "def spread(numbers):\n    return max(numbers) - min(numbers)\n",
}


def fault(edits: str, head: str = "# Wrong.\nname: q1-values") -> Fault:
    (only,) = parse(FILE, f"{head}\n{edits}")
    return only


BEHIND = '"""One more."""\n        self.total = number\n\n        return number\n\n    def clear'
EDITED: dict[str, tuple[str, str]] = {
    "text inside a line is replaced": ("- len(numbers)\n+ 2", "return sum(numbers) / 2\n"),
    "further lines are indented as the first": (
        "- if number:\n-     self.total += number\n+ if number > 0:\n+     self.total += 1\n+     pass",
        "        if number > 0:\n            self.total += 1\n            pass\n            self.last",
    ),
    "a line that stays is part of the anchor": (
        "+ if True:\n+     pass\n  self.last = number",
        "            if True:\n                pass\n            self.last = number",
    ),
    "text without a successor is deleted": (
        "- self.last = number  # kept", "            self.total += number\n            \n        return"
    ),
    "a function makes an anchor the only one": (
        "@@ Sum.clear\n- self.total = 0\n+ self.total = 1", SOLUTION["q1"].removesuffix("0\n") + "1\n"
    ),
    "new text alone is a body and docstrings stay": ("@@ Sum.add\n+ self.total = number\n+\n+ return number", BEHIND),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITED)
def test_one_place_is_edited(what: str) -> None:
    edits, expected = EDITED[what]
    ((cell, text),) = fault(edits).answers(SOLUTION).items()
    compile(text, cell, "exec")
    assert text.count(expected) == 1 and expected not in SOLUTION[cell]


def test_several_edits_make_one_answer() -> None:
    edits = "- if number:\n+ if True:\n@@\n- return self.total\n+ return None\n@@ spread\n- max\n+ sum"
    changed = fault(edits).answers(SOLUTION)
    assert "if True:" in changed["q1"] and "return None" in changed["q1"] and "sum(numbers) - min" in changed["q2"]


def test_a_cover_is_small_and_loses_every_check() -> None:
    heads = ["first: q1-a q1-b", "second: q1-b q1-c", "short: q1-b q1-c", "race: q1-c? q1-d?", "all: q1-e q1-d q1-b"]
    edits = ["- a\n+ b", "- max(numbers)\n+ 0", "- a\n+ c", "- a\n+ d", "- a\n+ e"]
    faults = list(parse(FILE, "\n\n".join(f"# Wrong.\n{head}\n{text}" for head, text in zip(heads, edits))))
    assert [each.name for each in cover(faults)] == ["all", "first", "short"]
    assert cover([]) == []


CANNOT = {
    "gone": ("- self.count += 1\n+ pass", r"lab20/q1.diff, name: the anchor 'self.count \+= 1' is gone"),
    "in another question": ("- max(numbers)\n+ 0", "is gone"),
    "in another function": ("@@ Sum.clear\n- if number:\n+ if True:", "is gone in Sum.clear"),
    "there twice": ("- self.total = 0\n+ self.total = 1", "2 places fit 'self.total = 0'; take more lines, or name"),
    "a function that is not there": ("@@ Sum.pop\n+ pass", "no answer of the lab has Sum.pop"),
    "no change": ("- if number:\n+ if True:\n@@\n- if True:\n+ if number:", "its edits change nothing"),
}


@pytest.mark.parametrize("what", CANNOT)
def test_an_edit_that_finds_no_place_says_which(what: str) -> None:
    edits, message = CANNOT[what]
    with pytest.raises(ValueError, match=message):
        fault(edits).answers(SOLUTION)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: q1-values\n- a\n+ b", "begin with `# what is wrong`"),
        ("# Wrong.\n- a\n+ b", "begin with `# what is wrong`"),
        ("# Wrong.\nname:\n- a\n+ b", "begin with `# what is wrong`"),
        ("# Wrong.\nname: q1-values\n-a\n+b", "begins with none of"),
        ("# Wrong.\nname: q1-values\n+ b", "needs an old text"),
        ("# Wrong.\nname: q1-values\n-     a\n+ b", "needs an old text, not indented"),
        ("# Wrong.\nname: q1-values\n- a\n+ a", "another new one"),
        ("# Wrong.\nname: q1-values", "no edit"),
        ("# Wrong.\nname: q1-values\n- a\n+ b\n\n# Wrong, too.\nname: q1-values\n- c\n+ d", "two are called name"),
    ],
)
def test_what_the_format_does_not_mean_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(parse(FILE, text))


def test_a_folder_is_read_question_by_question(tmp_path: Path) -> None:
    for question in ("q2", "q1"):
        head = f"# Wrong\n# in two lines.\n{question}_is_wrong: {question}-values {question}-hidden\n- a\n+ b\n"
        (tmp_path / f"{question}.diff").write_text(f"{head}\n{head.replace('is_wrong', 'again')}", "utf-8")
    faults = read_faults(tmp_path)
    assert [each.name for each in faults] == ["q1_is_wrong", "q1_again", "q2_is_wrong", "q2_again"]
    assert faults[0].wrong == "Wrong in two lines." and faults[0].loses == {"q1-values", "q1-hidden"}
