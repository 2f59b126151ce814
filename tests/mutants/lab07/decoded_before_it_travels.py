# %%
"""Encodes, decodes, and sends the whole float32: no byte is saved."""

LOSES = {"q5-traffic", "q5-hidden"}


# %% answer="q5"
def compressed_mean(gradient, residual):
    owed = gradient + residual
    message = encode(owed)
    mean = decode(message, len(owed))
    residual.copy_(owed - mean)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()
