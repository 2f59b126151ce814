# %%
"""The sum is kept in float32 and rounded once at the end: right, and not what was asked."""

LOSES = {"q5-resources", "q5-hidden"}


# %% answer="q5"
def dot(a, b):
    total = torch.zeros(a.shape[0], dtype=torch.float32)
    for x, y in zip(a.unbind(1), b.unbind(1), strict=True):
        total = total + x.float() * y.float()
    return total.to(a.dtype)
