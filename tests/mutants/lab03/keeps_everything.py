# %%
"""A "checkpoint" that keeps everything: the right gradients, and not a byte saved."""

LOSES = {"q3-bytes", "q3-hidden", "q4-fits", "q4-hidden"}


# %% answer="q3"
def checkpoint(layers, x):
    for layer in layers:
        x = layer(x)
    return x
