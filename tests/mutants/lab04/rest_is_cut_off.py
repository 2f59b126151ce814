# %%
"""The rest is cut off and not rounded: below 2^-14 the error is twice as large."""

LOSES = {"q2-exact", "q2-hidden"}


# %% answer="q2"
def split(w):
    half = w.half()
    return half, ((w - half.float()) / unit_of(half)).trunc().to(torch.int16)


def unit_of(half):
    _, exponent = torch.frexp(half.float().abs().clamp(min=2.0**-14))  # below that, the spacing stays
    return torch.ldexp(torch.ones_like(half, dtype=torch.float32), exponent - 11 - 15)
