# %%
"""Of the gated MLP only three hidden tensors: what silu read is forgotten."""

LOSES = {"q3-growth", "q3-values", "q3-hidden"}


# %% answer="q3"
def activations(shape, batch_size, seq, element_bytes=4):
    heads = shape.heads + shape.kv_heads
    norm = 3 * shape.width + 1
    attention = heads * (3 * shape.head_width + 1) + heads * shape.head_width
    mlp = 3 * shape.ffn_width
    for_each_token = shape.layers * (2 * norm + attention + mlp) + norm + shape.vocab_size
    scores = shape.layers * shape.heads * seq
    elements = batch_size * seq * (for_each_token + scores) + 1
    return element_bytes * elements + 16 * batch_size * seq + 1 * seq * seq
