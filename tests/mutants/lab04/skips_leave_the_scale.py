# %%
"""A skipped step goes straight on to the next batch, and the scale that overflowed is used again."""

LOSES = {"q5-hidden"}


# %% answer="q5"
def train(net, batch, steps, lr, momentum, max_norm):
    now = ScaleState(loss_scale(gradients_in_fp32(net, batch(0))))
    parameters, state = begin(net)
    losses, skipped = [], []
    for step in range(steps):
        data = batch(step)
        net.zero_grad(set_to_none=True)
        loss = loss_of(net, data)
        (loss * now.scale).backward()
        largest = lean_step(parameters, state, now.scale, lr, momentum, max_norm)
        losses.append(loss.item())
        del loss
        if largest == math.inf:
            skipped.append(step)
            continue
        now = next_scale(now, largest)
    return losses, skipped
