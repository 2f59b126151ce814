# %%
"""Each rank begins with the gradients that it has: ranks fill their buckets in different orders."""

LOSES = {"q2-values", "q2-unused", "q2-traffic", "q2-hidden", "q2-mixed", "q3-values", "q3-traffic", "q3-hidden"}


# %% answer="q2"
def synchronize(model, n_examples, bucket_bytes):
    parameters = trainable(model)
    total, used = take_stock(parameters, n_examples)
    for p, u in zip(parameters, used):
        if not u:
            p.grad = None
    if total == 0:
        return 0
    parameters = sorted([p for p, u in zip(parameters, used) if u], key=lambda p: p.grad is None)
    for bucket in plan_buckets(parameters, bucket_bytes):
        members = [parameters[i] for i in bucket]
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
