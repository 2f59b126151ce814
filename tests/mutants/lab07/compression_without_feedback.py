# %%
"""What is lost is lost: the residual stays as it was."""

LOSES = {"q5-feedback", "q5-training", "q5-hidden"}


# %% answer="q5"
def compressed_mean(gradient, residual):
    owed = gradient + residual
    message = encode(owed)
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    dist.all_gather(messages, message)
    return torch.stack([decode(each, len(owed)) for each in messages]).mean(dim=0)
