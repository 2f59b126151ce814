# %%
"""The spacing is taken at w and not at half: they differ where w is rounded up to a power of two."""

LOSES = {"q2-values", "q2-exact", "q2-hidden", "q3-values", "q3-bytes", "q3-hidden"}


# %% answer="q2"
def split(w):
    half = w.half()
    return half, ((w - half.float()) / unit_of(w)).round().to(torch.int16)


def unit_of(w):
    return FP16.spacing(w.float()) * 2.0**-15
