# %%
"""The factor 2 is forgotten: keys only."""

LOSES = {"q5-values", "q5-hidden"}


# %% answer="q5"
def cache_account(shape, lengths, layout, context, page, element_bytes=2):
    token = shape.layers * shape.kv_heads * shape.head_width * element_bytes
    if layout == "grown":
        return token * sum(lengths), token * sum(length + 1 for length in lengths)
    if layout == "preallocated":
        return token * len(lengths) * context, token * len(lengths)
    if layout == "paged":
        return token * page * sum(-(-length // page) for length in lengths), token * len(lengths)
    raise ValueError(layout)
