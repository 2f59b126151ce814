# %%
"""Looks at the word when it comes to divide: the tensors have travelled before anybody is told."""

LOSES = {"q2-hidden"}


# %% answer="q2-all-reduce"
def all_reduce(tensor, op="sum"):
    p = dist.get_world_size()
    if p & (p - 1):
        raise ValueError(f"halving needs a power of two; there are {p} ranks")
    everyone = list(range(p))
    whole = all_gather(reduce_scatter(tensor.reshape(-1), everyone), tensor.numel(), everyone)
    if op == "mean":
        whole = whole / p
    elif op != "sum":
        raise ValueError(f"op={op!r}: it must be sum or mean")
    return tensor.copy_(whole.view(tensor.shape))
