# %%
"""A rank that is out of data returns, and leaves the others waiting."""

LOSES = {"q3-values", "q3-traffic", "q3-hidden"}


# %% answer="q3"
def train_epoch(model, optimizer, batches, bucket_bytes):
    steps = 0
    while steps < len(batches):
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = batches[steps] if steps < len(batches) else ((), ())
        if len(inputs):
            model(inputs, targets).backward()
        if synchronize(model, len(inputs), bucket_bytes) == 0:
            return steps
        optimizer.step()
        steps += 1
    return steps
