# %%
"""Plans buckets of everything trainable, then leaves out the unused: they leave before they are full."""

LOSES = {"q2-traffic"}


# %% answer="q2"
def synchronize(model, n_examples, bucket_bytes):
    parameters = trainable(model)
    total, used = take_stock(parameters, n_examples)
    for p, u in zip(parameters, used):
        if not u:
            p.grad = None
    if total == 0:
        return 0
    for bucket in plan_buckets(parameters, bucket_bytes):
        members = [parameters[i] for i in bucket if used[i]]
        if not members:
            continue
        pieces = []
        for p in members:
            if n_examples == 0 or p.grad is None:
                pieces.append(torch.zeros(p.numel(), dtype=p.dtype))
            else:
                pieces.append(p.grad.flatten() * (n_examples / total))
        flat = torch.cat(pieces)
        dist.all_reduce(flat)
        for p, piece in zip(members, flat.split([p.numel() for p in members])):
            p.grad = piece.view_as(p)
    return total
