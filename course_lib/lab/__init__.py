"""What the checks of a lab are written with: `from course_lib.lab import check`."""

from course_lib.lab import check
from course_lib.lab.failed import CheckFailed

__all__ = ["CheckFailed", "check"]
