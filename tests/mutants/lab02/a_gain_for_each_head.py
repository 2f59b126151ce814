# %%
"""The norms of queries and keys get a gain for every head; the real ones share theirs."""

LOSES = {"q1-values", "q1-hidden", "q2-values", "q2-hidden"}


# %% answer="q1"
def tensors(shape):
    h, f, d = shape.width, shape.ffn_width, shape.head_width
    queries, keys, vocabulary = shape.heads * d, shape.kv_heads * d, (shape.vocab_size, h)
    return {
        "embedding": [vocabulary],
        "attention": [(queries, h), (keys, h), (keys, h), (h, queries)] * shape.layers,
        "mlp": [(f, h), (f, h), (h, f)] * shape.layers,
        "norms": [(h,), (h,), (queries,), (keys,)] * shape.layers + [(h,)],
        "head": [] if shape.tied else [vocabulary],
    }
