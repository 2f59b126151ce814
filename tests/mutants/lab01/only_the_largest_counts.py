# %%
"""The scale that suits the largest number, where the sum over the block should decide."""

LOSES = {"q4-values", "q4-hidden"}


# %% answer="q4"
def better_scales(x, scales, element):
    largest, errors = x.view(-1, 32).abs().amax(dim=1).double(), []
    for step in (0, 1):
        X = 2.0 ** (scales.double() + step - 127)
        errors.append((element.round((largest / X).clamp(max=element.max)) * X - largest).abs())
    return torch.where((errors[1] < errors[0]) & (scales < 254), scales + 1, scales)
