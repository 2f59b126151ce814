"""What the checks of a lab are written with: `from course_kit.checks import check`."""

from course_kit.checks import alone, check
from course_kit.checks.failed import CheckFailed

__all__ = ["CheckFailed", "alone", "check"]
