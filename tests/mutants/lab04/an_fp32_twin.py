# %%
"""A copy of the network trains in fp32; bad batches are found by looking at them. The net itself only looks fp16."""

LOSES = {"q5-bytes", "q5-hidden"}


# %% answer="q5"
def train(net, batch, steps, lr, momentum, max_norm):
    twin = Bridge(0)
    twin.load_state_dict(net.state_dict())
    begin(net)
    bad = []
    for step in range(steps):
        x, y = batch(step)
        if not x.isfinite().all() or y.max() > 1:
            bad.append(step)
    return train_in_fp32(twin, batch, steps, lr, momentum, max_norm, bad=bad), bad
