# %%
"""One product after the other, and no memory of what was lost."""

LOSES = {"q5-values", "q5-hidden"}


# %% answer="q5"
def dot(a, b):
    total = torch.zeros(a.shape[0], dtype=a.dtype)
    for x, y in zip(a.unbind(1), b.unbind(1), strict=True):
        total = total + x * y
    return total
