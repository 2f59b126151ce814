# %%
"""A rank that is out of data reads its last batch again: that batch counts twice."""

LOSES = {"q3-values", "q3-traffic", "q3-hidden"}


# %% answer="q3"
def train_epoch(model, optimizer, batches, bucket_bytes):
    steps = 0
    longest = torch.tensor(len(batches))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    while steps < longest.item():
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = batches[min(steps, len(batches) - 1)] if batches else ((), ())
        if len(inputs):
            model(inputs, targets).backward()
        synchronize(model, len(inputs), bucket_bytes)
        optimizer.step()
        steps += 1
    return steps
