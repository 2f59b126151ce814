"""Every table of the lessons and labs has a witness: what stands under "measured" does not come from the formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_tools.witnesses import suspects

ROOT = Path(__file__).parents[2]
READS = ("lessons/src/*.py", "solutions/src/*.py")
SOURCES = sorted([*ROOT.glob("lessons/src/*.py"), *ROOT.glob("solutions/src/*.py")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_table_compares_a_number_with_itself(path: Path) -> None:
    assert suspects(path.read_text("utf-8")) == []


def test_the_lessons_have_tables() -> None:
    assert sum(path.read_text("utf-8").count("compare(") for path in SOURCES) > 100


ACCUSED = {
    "the same expression": "compare(predicted=2 * n, measured=Bytes(2 * n))",
    "the same expression by another name": "a = f(2)\nb = a\ncompare(predicted=a, measured=b)",
    "the same call, written twice": "compare(predicted=Count(f(2)) + 1, measured=Count(f(2)) - 1)",
    "the same call, two parts of it": "a, b = f(2)\nboth = [a, b]\ncompare(predicted=len(both), measured=sum(both))",
    "the same function": "compare(predicted=ring(4), measured=ring(8))",
    "the same function, one row": "n = g()\ncompare(predicted={'a': 1, 'b': f(1)}, measured={'a': n, 'b': f(2)})",
    "a formula for a measurement": "t = predict.tokens(1)\ncompare(predicted=3 * n, measured=Count(round(t.total)))",
    "a formula in a loop": "compare(predicted=64, measured=min(p for p in range(9) if predict.bytes(p) > 3))",
    "a measurement over a formula": "compare(predicted=predict.f(1) / predict.g(1), measured=record.a / predict.g(1))",
    "a number typed in": "compare(predicted=predict.peak(SMALL), measured=Bytes(10 * 2**20))",
    "headings do not help a formula": "compare(predicted=1, measured=predict.f(2), columns=('by hand', 'solved'))",
    "a paper's evaluation of its own formula": (
        "compare(predicted=16 * 1.5, measured=24, columns=('our formula', 'published'))"
    ),
    "a formula in a zip that a loop takes apart": (
        "for name, m in dict(zip(names, (predict.f(2), predict.g(2)))).items():\n    compare(predicted=1, measured=m)"
    ),
    "filled entry by entry": "m = {}\nm['a'] = predict.f(2)\ncompare(predicted={'a': 1}, measured=m)",
}
HONEST = {
    "formula and measurement": "compare(predicted=predict.peak(SMALL), measured=record.peak)",
    "by hand and measured": "compare(predicted=Bytes(4 * 12), measured=ranks.run(count, 12)[0])",
    "two measurements that say so": "compare(predicted=run('a'), measured=run('b'), columns=('fp32', 'bf16'))",
    "a published measurement": (
        "# measured: Smith et al. 2022, section 2, on 280 servers\n"
        "compare(predicted=predict.f(1), measured=Count(2550), columns=('our formula', 'published'))"
    ),
    "a rule and its outcome, of two runs": (
        "def share(yes):\n    return Ratio(yes.mean())\ng, v = step(fp32), step(fp16)\n"
        "compare(predicted=share(g < 2**-25), measured=share(v == 0))"
    ),
    "a name used again": "t = predict.f(1)\nold = t\nt = ranks.run(f)\ncompare(predicted=old, measured=t)",
    "a name of a function's own": (
        "a = run()\ndef f():\n    a = predict.f(1)\n    b = a\ncompare(predicted=predict.f(1), measured=a)"
    ),
    "rows by zip": "ours = {'a': predict.f(1)}\ncompare(predicted=ours, measured=dict(zip(ours, (g(), h()))))",
    "a zip that a loop takes apart": (
        "for name, m in dict(zip(names, (g(), h()))).items():\n    compare(predicted=predict.f(1), measured=m)"
    ),
    "made in one go": "a, b = (Ratio(x) for x in (predict.f(1), card.peak))\ncompare(predicted=a, measured=b)",
    "a record": "with measure.memory() as record:\n    step()\ncompare(predicted=predict.f(1), measured=record.peak)",
}


@pytest.mark.parametrize("fault", ACCUSED)
def test_a_table_without_a_witness_is_found(fault: str) -> None:
    assert len(suspects(ACCUSED[fault])) == 1


@pytest.mark.parametrize("case", HONEST)
def test_an_honest_table_is_left_in_peace(case: str) -> None:
    assert suspects(HONEST[case]) == []
