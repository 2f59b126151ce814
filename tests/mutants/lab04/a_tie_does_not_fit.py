# %%
"""Counted in 2^-16 of the spacing, the rest of a tie is 32,768: one more than int16 has, and it wraps."""

LOSES = {"q2-values", "q2-exact", "q2-hidden", "q3-bytes", "q3-hidden"}


# %% answer="q2"
def split(w):
    half = w.half()
    return half, ((w - half.float()) / unit_of(half)).round().to(torch.int16)


def unit_of(half):
    return FP16.spacing(half.float()) * 2.0**-16
