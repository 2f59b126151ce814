# %%
"""The head is listed although it has the embedding's matrix: the memory of the files, not of the model."""

LOSES = {"q1-values", "q1-tied", "q1-hidden", "q2-values", "q2-hidden"}


# %% answer="q1"
def tensors(shape):
    h, f, d = shape.width, shape.ffn_width, shape.head_width
    queries, keys, vocabulary = shape.heads * d, shape.kv_heads * d, (shape.vocab_size, h)
    return {
        "embedding": [vocabulary],
        "attention": [(queries, h), (keys, h), (keys, h), (h, queries)] * shape.layers,
        "mlp": [(f, h), (f, h), (h, f)] * shape.layers,
        "norms": [(h,), (h,), (d,), (d,)] * shape.layers + [(h,)],
        "head": [vocabulary],
    }
