# %%
"""All stop as soon as one rank is out of data, and throw the rest away."""

LOSES = {"q3-values", "q3-traffic", "q3-hidden"}


# %% answer="q3"
def train_epoch(model, optimizer, batches, bucket_bytes):
    steps = 0
    shortest = torch.tensor(len(batches))
    dist.all_reduce(shortest, op=dist.ReduceOp.MIN)
    while steps < shortest.item():
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = batches[steps] if steps < len(batches) else ((), ())
        if len(inputs):
            model(inputs, targets).backward()
        if synchronize(model, len(inputs), bucket_bytes) == 0:
            return steps
        optimizer.step()
        steps += 1
    return steps
