"""A simulated GPU under PyTorch's own CUDA keys, and what runs on it: `python3 start.py test gpu`.

What is real: device strings, dispatch keys, autocast's lists for CUDA, the device of every tensor
and the error about two of them, bytes allocated (in blocks of 512, up to the card's memory), dice,
and copies to pinned memory that hold rubbish until somebody waits. Groups of ranks are called
NCCL's, and refuse what NCCL refuses.

What it cannot see: seconds, the rounding of a GPU's kernels (they are the CPU's) and TF32, the
workspaces of cuBLAS, segments and so bytes reserved, streams that run beside each other, NCCL's
timing and order, Triton, fused attention (it is written out here), and what products beyond a GFLOP
give (NaN here). Nothing that passes here has been seen on a GPU, and no device here has the name of
one without "simulated".

| file | stands for |
|---|---|
| `cards.py` | the machines: a simulated T4, an H100, several of them |
| `build.py` | the library of `device/`, built once by this machine's compiler |
| `stand_in.py` | `torch.cuda`, in a process that `site/` has made a simulated machine |
| `streams.py`, `kernels.py`, `nccl.py` | parts of it |
"""
