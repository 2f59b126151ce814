"""Cells' words to their reader: `ask` for a guess, `show` for source, `self_check` and `your_turn`."""

from course_kit.notebook.ask import Ask, ask
from course_kit.notebook.show import show
from course_kit.notebook.your_turn import self_check, your_turn

__all__ = ["Ask", "ask", "self_check", "show", "your_turn"]
