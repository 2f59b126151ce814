# %%
"""Adds up all that autograd saves: weights among it, and a tensor twice that two operations save."""

LOSES = {"q4-profile", "q4-fits", "q4-hidden"}


# %% answer="q4"
def profile(layers, x):
    costs = []
    for layer in layers:
        x, saved = x.detach().requires_grad_(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t.nbytes) or t, lambda t: t):
            result = layer(x)
        with measure.flops() as counted, torch.no_grad():
            layer(x)
        costs.append(Cost(x.nbytes, sum(saved), int(counted.total)))
        x = result
    return costs
