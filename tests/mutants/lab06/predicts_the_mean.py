# %%
"""2(p-1)/p of the tensor for every rank: right on average, wrong for each."""

LOSES = {"q3-predicted", "q3-hidden"}


# %% answer="q3"
def predict_sends(elements, element_size, world_size, rank):
    messages = 2 * (world_size.bit_length() - 1)
    return messages, round(2 * elements * element_size * (world_size - 1) / world_size)
