# %%
"""The better bytes are written over the ones that were given."""

LOSES = {"q4-values", "q4-hidden"}


# %% answer="q4"
def better_scales(x, scales, element):
    up = torch.where(scales < 254, scales + 1, scales)
    rule, moved = (
        (round_trip(x, byte, element).double() - x.double()).view(-1, 32).square().sum(dim=1) for byte in (scales, up)
    )
    scales[moved < rule] += 1
    return scales
