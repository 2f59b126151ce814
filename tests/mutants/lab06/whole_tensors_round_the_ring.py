# %%
"""Each rank hands on the whole tensor that came last, p - 1 times, and adds it up."""

LOSES = {"q2-traffic", "q2-hidden"}


# %% answer="q2-all-reduce"
def all_reduce(tensor, op="sum"):
    p = dist.get_world_size()
    if p & (p - 1):
        raise ValueError(f"halving needs a power of two; there are {p} ranks")
    if op not in ("sum", "mean"):
        raise ValueError(f"op={op!r}: it must be sum or mean")
    rank, total = dist.get_rank(), tensor.clone()
    travels = tensor.contiguous().clone()
    for _ in range(p - 1):
        arrived = torch.empty_like(travels)
        posted = dist.isend(travels, (rank + 1) % p)
        dist.recv(arrived, (rank - 1) % p)
        posted.wait()
        total += arrived
        travels = arrived
    return tensor.copy_(total / p if op == "mean" else total)
