# %%
"""The first scale is a number that fits this bridge and is not measured."""

LOSES = {"q5-hidden"}


# %% answer="q5"
def train(net, batch, steps, lr, momentum, max_norm):
    now = ScaleState(2.0**34)
    parameters, state = begin(net)
    losses, skipped = [], []
    for step in range(steps):
        data = batch(step)
        net.zero_grad(set_to_none=True)
        loss = loss_of(net, data)
        (loss * now.scale).backward()
        largest = lean_step(parameters, state, now.scale, lr, momentum, max_norm)
        now = next_scale(now, largest)
        losses.append(loss.item())
        del loss
        if largest == math.inf:
            skipped.append(step)
    return losses, skipped
