# %%
"""Right in fp32, and the same number in bf16."""

LOSES = {"q3-values", "q3-hidden"}


# %% answer="q3"
def activations(shape, batch_size, seq, element_bytes=4):
    heads = shape.heads + shape.kv_heads
    norm = 3 * shape.width + 1
    attention = heads * (4 * shape.head_width + 1)
    for_each_token = shape.layers * (2 * norm + attention + 4 * shape.ffn_width) + norm + shape.vocab_size
    elements = batch_size * seq * (for_each_token + shape.layers * shape.heads * seq) + 1
    return 4 * elements + 16 * batch_size * seq + seq * seq
