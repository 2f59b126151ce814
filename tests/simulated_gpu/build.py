"""The library of a simulated GPU: built once by this machine's compiler, for the PyTorch that is here.

It lies in `build/simulated_gpu/`, under a name that says what it was built from. PyTorch's C++ is compiled against
without Python's, so that neither ninja nor Python's headers are needed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tests.simulated_gpu.cards import HERE, T4

FOLDER = HERE.parents[1] / "build" / "simulated_gpu"
SOURCE = HERE / "device" / "library.cpp"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O1", "-std=c++20", "-fPIC", "-shared", "-w")
PROBE = "import torch; x = torch.ones(3).cuda(); assert (x + x).sum() == 6; print(torch.cuda.get_device_name())"


def problem() -> str:
    """The reason for which no GPU can be simulated here, with what to install; nothing if one can."""
    import torch

    if torch.version.cuda or torch.version.hip:
        return f"PyTorch {torch.__version__} is built for GPUs, and only its CPU build can be given simulated ones"
    if not compiler():
        return "there is no compiler of C++: sudo apt-get install g++"
    try:
        built()
    except subprocess.CalledProcessError as error:
        return f"{compiler()} does not compile it for PyTorch {torch.__version__}: {last_line(error.stderr)}"
    ran = subprocess.run(
        [sys.executable, "-c", PROBE], env=T4.environment(library()), capture_output=True, text=True, timeout=120
    )
    if ran.stdout.strip() == T4.name:
        return ""
    return f"PyTorch {torch.__version__} does not take a simulated GPU: {last_line(ran.stderr)}"


def compiler() -> str:
    """The first compiler of C++ that is here; `CXX` goes before the others."""
    names = [*filter(None, [os.environ.get("CXX")]), *COMPILERS]
    return next((name for name in names if shutil.which(name)), "")


def library() -> Path:
    """The place of the library that belongs to this source, this PyTorch and this processor."""
    import torch

    made_from = hashlib.sha256(f"{torch.__version__} {platform.machine()} {FLAGS}".encode())
    for path in sorted(SOURCE.parent.iterdir()):
        made_from.update(path.read_bytes())
    return FOLDER / f"device-{made_from.hexdigest()[:16]}.so"


def built() -> Path:
    """The library, compiled if it is not there.

    Raises:
        subprocess.CalledProcessError: the compiler failed.
    """
    import torch

    if not library().exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        print("=== compile the simulated GPU: half a minute, once", flush=True)
        fresh = library().with_suffix(f".{os.getpid()}")
        torchs = Path(torch.__file__).parent
        found = [f"-I{torchs / 'include'}", f"-I{torchs / 'include/torch/csrc/api/include'}", f"-L{torchs / 'lib'}"]
        links = ["-ltorch", "-ltorch_cpu", "-lc10", "-o", str(fresh)]
        command = [compiler(), *FLAGS, str(SOURCE), *found, *links]
        subprocess.run(command, check=True, capture_output=True, text=True)
        fresh.replace(library())
    return library()


def last_line(said: str) -> str:
    """What a program said last, or the first error of a compiler or of C++."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line.strip() for line in lines if "error:" in line or "what():" in line]
    return [*errors[:1], *lines[-1:], "it said nothing"][0][:200]
