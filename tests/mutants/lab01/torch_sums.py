# %%
"""torch.sum adds 16-bit numbers up in 32 bits inside."""

LOSES = {"q5-resources", "q5-hidden"}


# %% answer="q5"
def dot(a, b):
    return (a * b).sum(dim=1)
