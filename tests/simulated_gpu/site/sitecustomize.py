"""Make every Python that inherits the variable a simulated machine: kernels, ranks, torchrun.

Python imports a module of this name by itself. A child that cannot be one ends here: else its tests
would run without a GPU, skip themselves and pass.
"""

import os
import sys
import traceback

if os.environ.get("SIMULATED_GPU"):
    try:
        from tests.simulated_gpu import stand_in

        stand_in.begin()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
