# %%
"""Adds the residual to the caller's gradient."""

LOSES = {"q5-feedback", "q5-hidden"}


# %% answer="q5"
def compressed_mean(gradient, residual):
    n, p = len(gradient), dist.get_world_size()
    owed = gradient.add_(residual)
    message = encode(owed)
    residual.copy_(owed - decode(message, n))
    messages = [torch.empty_like(message) for _ in range(p)]
    dist.all_gather(messages, message)
    return sum(decode(m, n) for m in messages) / p
