"""What a cell for a GPU says where it cannot run."""

import pytest
import torch

from course_pages.shared import gpu


@pytest.mark.parametrize(
    ("free", "says"),
    [(3 * 2**30, ""), (2**29, "This cell needs 2.0 GiB of a GPU's memory; the T4 has 0.5 GiB free of 14.6 GiB.")],
)
def test_a_card_with_too_little_memory_is_told_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch, free: int, says: str
) -> None:
    card = {
        "is_available": True,
        "empty_cache": None,
        "mem_get_info": (free, int(14.56 * 2**30)),
        "get_device_name": "T4",
    }
    for name, answer in card.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    assert gpu.refusal(2 * 2**30) == says


def test_without_a_gpu_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.refusal(1).startswith("No GPU here") and "\n" not in gpu.refusal(1)
