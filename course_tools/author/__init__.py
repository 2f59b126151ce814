"""From the sources in `lessons/src` to the executed notebooks in `lessons`, the same to the byte each time.

`course build` is the command; CONTRIBUTING.md explains the way. No lesson opens this package.
"""

from course_tools.author.builder import BuildError, build, check
from course_tools.lessons import Lesson, all_lessons, course_root, find_lessons

__all__ = ["BuildError", "Lesson", "all_lessons", "build", "check", "course_root", "find_lessons"]
