# %%
"""Clears all gradients when it has measured, somebody else's among them."""

LOSES = {"q4-profile"}


# %% answer="q4"
def profile(layers, x):
    costs = []
    for layer in layers:
        x = x.detach().requires_grad_()
        with measure.memory(layer, inputs=x) as record:
            result = layer(x.clone())
            saved = int(record.now.activations)
        with measure.flops() as counted:
            layer(x)
        costs.append(Cost(x.nbytes, saved, int(counted.total)))
        x = result
    layers = list(layers)
    for layer in layers:
        layer.zero_grad()
    return costs
