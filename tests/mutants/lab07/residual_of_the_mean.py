# %%
"""Subtracts the mean that came back, not what this rank sent."""

LOSES = {"q5-feedback", "q5-training", "q5-hidden"}


# %% answer="q5"
def compressed_mean(gradient, residual):
    owed = gradient + residual
    message = encode(owed)
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    dist.all_gather(messages, message)
    mean = torch.stack([decode(each, len(owed)) for each in messages]).mean(dim=0)
    residual.copy_(owed - mean)
    return mean
