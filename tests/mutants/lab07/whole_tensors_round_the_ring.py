# %%
"""A ring that hands on whole tensors, not parts."""

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
        r, p_ = dist.get_rank(), dist.get_world_size()
        passing = flat.clone()
        for _ in range(p_ - 1):
            came = torch.empty_like(passing)
            work = dist.isend(passing, (r + 1) % p_)
            dist.recv(came, (r - 1) % p_)
            work.wait()
            flat += came
            passing = came
        for p, piece in zip(members, flat.split([p.numel() for p in members])):
            p.grad = piece.view_as(p)
    return total
