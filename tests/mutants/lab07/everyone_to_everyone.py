# %%
"""Everyone sends everything to everyone, in an all-reduce where each rank has a row of its own."""

LOSES = {"q2-traffic", "q2-hidden", "q3-traffic", "q3-hidden"}


# %% answer="q2"
def synchronize(model, n_examples, bucket_bytes):
    parameters = trainable(model)
    total, used = take_stock(parameters, n_examples)
    for p, u in zip(parameters, used):
        if not u:
            p.grad = None
    if total == 0:
        return 0
    parameters = [p for p, u in zip(parameters, used) if u]
    for bucket in plan_buckets(parameters, bucket_bytes):
        members = [parameters[i] for i in bucket]
        pieces = []
        for p in members:
            if n_examples == 0 or p.grad is None:
                pieces.append(torch.zeros(p.numel(), dtype=p.dtype))
            else:
                pieces.append(p.grad.flatten() * (n_examples / total))
        flat = torch.cat(pieces)
        rows = torch.zeros(dist.get_world_size(), len(flat), dtype=flat.dtype)
        rows[dist.get_rank()] = flat
        dist.all_reduce(rows)
        flat = rows.sum(0)
        for p, piece in zip(members, flat.split([p.numel() for p in members])):
            p.grad = piece.view_as(p)
    return total
