# %%
"""Binds the name to a new tensor; the one of the caller never changes."""

LOSES = {"q5-feedback", "q5-training", "q5-hidden"}


# %% answer="q5"
def compressed_mean(gradient, residual):
    owed = gradient + residual
    message = encode(owed)
    residual = owed - decode(message, len(owed))
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    dist.all_gather(messages, message)
    return torch.stack([decode(each, len(owed)) for each in messages]).mean(dim=0)
