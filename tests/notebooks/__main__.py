"""`python -m tests.notebooks`: execute every lesson again and compare all outputs with the stored ones."""

import sys

from tests.notebooks.gate import run

sys.exit(run(sys.argv[1:]))
