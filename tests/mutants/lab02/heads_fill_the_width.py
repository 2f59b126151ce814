# %%
"""Every query head is width / heads wide, as in the GPT of lesson 00."""

LOSES = {"q1-values", "q1-hidden", "q2-values", "q2-hidden"}


# %% answer="q1"
def tensors(shape):
    h, f, d = shape.width, shape.ffn_width, shape.width // shape.heads
    keys, vocabulary = shape.kv_heads * d, (shape.vocab_size, h)
    return {
        "embedding": [vocabulary],
        "attention": [(h, h), (keys, h), (keys, h), (h, h)] * shape.layers,
        "mlp": [(f, h), (f, h), (h, f)] * shape.layers,
        "norms": [(h,), (h,), (d,), (d,)] * shape.layers + [(h,)],
        "head": [] if shape.tied else [vocabulary],
    }
