# %%
"""Writes into a copy where the memory is not contiguous: the tensor stays as it was."""

LOSES = {"q2-hidden"}


# %% answer="q2-all-reduce"
def all_reduce(tensor, op="sum"):
    p = dist.get_world_size()
    if p & (p - 1):
        raise ValueError(f"halving needs a power of two; there are {p} ranks")
    if op not in ("sum", "mean"):
        raise ValueError(f"op={op!r}: it must be sum or mean")
    everyone = list(range(p))
    flat = tensor.reshape(-1)
    part = reduce_scatter(flat, everyone)
    flat.copy_(all_gather(part / p if op == "mean" else part, len(flat), everyone))
    return tensor
