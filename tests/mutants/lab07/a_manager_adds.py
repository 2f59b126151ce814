# %%
"""The last rank adds for all; rank 0 sends no more than in a ring."""

LOSES = {"q2-traffic", "q2-hidden", "q3-traffic"}


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
        r, last = dist.get_rank(), dist.get_world_size() - 1
        if r != last:
            dist.send(flat, last)
            dist.recv(flat, last)
        else:
            for o in range(last):
                b = torch.empty_like(flat)
                dist.recv(b, o)
                flat += b
            for o in range(last):
                dist.send(flat, o)
        for p, piece in zip(members, flat.split([p.numel() for p in members])):
            p.grad = piece.view_as(p)
    return total
