# %%
"""The byte laid into the exponent field of a float32: right for 1 to 254, but the byte 0 then means 0, not 2^-127."""

LOSES = {"q2-back-values", "q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    X = (scales.int() << 23).view(torch.float32).unsqueeze(1)
    ratio = (x.view(-1, 32) / X).nan_to_num().clamp(-element.max, element.max)
    return element.encode(torch.where(scales.unsqueeze(1) == 255, 0.0, ratio)).to(torch.uint8)


# %% answer="q2-back"
def dequantize(patterns, scales, element):
    X = (scales.int() << 23).view(torch.float32).unsqueeze(1)
    values = torch.where(scales.unsqueeze(1) == 255, math.nan, element.decode(patterns) * X)
    return values.flatten().float()
