# %%
"""The byte 255 is read as a power of two like all others."""

LOSES = {"q2-back-values", "q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.nan_to_num().view(-1, 32).double() / 2.0 ** (scales.double().unsqueeze(1) - 127)
    return element.encode(ratio.clamp(-element.max, element.max)).to(torch.uint8)


# %% answer="q2-back"
def dequantize(patterns, scales, element):
    return (element.decode(patterns) * 2.0 ** (scales.double().unsqueeze(1) - 127)).flatten().float()
