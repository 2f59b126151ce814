# %%
"""All batches are asked for before the first step, so all of them are held for the whole run."""

LOSES = {"q5-bytes"}


# %% answer="q5"
def train(net, batch, steps, lr, momentum, max_norm):
    now = ScaleState(loss_scale(gradients_in_fp32(net, batch(0))))
    parameters, state = begin(net)
    batches = [batch(step) for step in range(steps)]
    losses, skipped = [], []
    for step in range(steps):
        data = batches[step]
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
