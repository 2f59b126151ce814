# %%
"""The shape of a gain is written (width), which is a number and no tuple."""

LOSES = {"q1-values", "q1-hidden", "q2-values", "q2-hidden", "q3-peak"}


# %% answer="q1"
def tensors(shape):
    h, f, d = shape.width, shape.ffn_width, shape.head_width
    queries, keys, vocabulary = shape.heads * d, shape.kv_heads * d, (shape.vocab_size, h)
    return {
        "embedding": [vocabulary],
        "attention": [(queries, h), (keys, h), (keys, h), (h, queries)] * shape.layers,
        "mlp": [(f, h), (f, h), (h, f)] * shape.layers,
        "norms": [h, h, d, d] * shape.layers + [h],
        "head": [] if shape.tied else [vocabulary],
    }
