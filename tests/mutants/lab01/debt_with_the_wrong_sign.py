# %%
"""The debt is added once more instead of being paid."""

LOSES = {"q5-values", "q5-hidden"}


# %% answer="q5"
def dot(a, b):
    total = torch.zeros(a.shape[0], dtype=a.dtype)
    owed = torch.zeros_like(total)
    for x, y in zip(a.unbind(1), b.unbind(1), strict=True):
        addend = x * y + owed
        new_total = total + addend
        owed = (new_total - total) - addend
        total = new_total
    return total
