"""What the checks of a lab are written with: `from course_lib.checks import check`."""

from course_lib.checks import alone, check
from course_lib.checks.failed import CheckFailed

__all__ = ["CheckFailed", "alone", "check"]
