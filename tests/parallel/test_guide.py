"""docs/using_the_library.md does what it says: every block runs, and the wrapped model trains as one process does."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from course_kit import ranks

READS = ("docs/using_the_library.md",)
GUIDE = Path(__file__).parents[2] / "docs/using_the_library.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "own.py").write_text(BLOCKS[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return __import__("own")


def test_the_first_block_trains_as_one_process(own: ModuleType) -> None:
    (alone,) = ranks.run(own.train, world_size=1)
    together = ranks.run(own.train, world_size=3)
    mean = [sum(losses) / 3 for losses in zip(*together, strict=True)]
    assert mean == pytest.approx(alone, rel=1e-5)
    assert len(set(map(tuple, together))) == 3 and alone[0] != alone[-1]


@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda block: block.splitlines()[0][:40])
def test_the_other_blocks_run(block: str) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(block, str(GUIDE), "exec"), names)


def test_ten_lines_are_ten_lines() -> None:
    changed = [line for line in BLOCKS[0].splitlines() if "# changed" in line or "# …" in line]
    assert len(changed) <= 10
