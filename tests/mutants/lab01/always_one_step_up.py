# %%
"""Every scale is doubled, so that nothing is cut off, whatever it costs the others."""

LOSES = {"q4-values", "q4-hidden"}


# %% answer="q4"
def better_scales(x, scales, element):
    return torch.where(scales < 254, scales + 1, scales)
