"""The words in which checks of labs are written: `from course_kit.checks import check`."""

from course_kit.checks import check, isolated_cell
from course_kit.checks.failed import CheckFailed
