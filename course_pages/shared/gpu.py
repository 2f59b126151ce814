"""What a cell for a GPU asks first: is there one, and has it the memory that the cell needs?"""

from __future__ import annotations

import torch

from course_kit.units import Bytes


def refusal(needs: int) -> str:
    """The sentence that a cell prints where it cannot run: there is no GPU, or less free memory than `needs` bytes.

    Returns:
        An empty text where the cell can run.
    """
    if not torch.cuda.is_available():
        return "No GPU here: the page goes on without one."
    torch.cuda.empty_cache()  # what PyTorch keeps for later is free, too
    free, total = map(Bytes, torch.cuda.mem_get_info())
    if free < needs:
        has = f"the {torch.cuda.get_device_name()} has {free:.1GiB} free of {total:.1GiB}"
        return f"This cell needs {Bytes(needs):.1GiB} of a GPU's memory; {has}."
    return ""
