# %%
"""Python's own floats have 64 bits: exact, and not what was asked."""

LOSES = {"q5-resources", "q5-hidden"}


# %% answer="q5"
def dot(a, b):
    rows = zip(a.tolist(), b.tolist(), strict=True)
    return torch.tensor([math.fsum(x * y for x, y in zip(*row, strict=True)) for row in rows], dtype=a.dtype)
