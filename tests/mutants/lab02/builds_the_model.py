# %%
"""Measures instead of counting: right for what fits, and no account of anything that does not."""

LOSES = {"q3-values", "q3-hidden"}


# %% answer="q3"
def activations(shape, batch_size, seq, element_bytes=4):
    if shape.layers * shape.width > 10_000:
        raise MemoryError("this model does not fit here")
    dtype = torch.float32 if element_bytes == 4 else torch.bfloat16
    return int(forward_record(shape, batch_size, seq, dtype).after.activations)
