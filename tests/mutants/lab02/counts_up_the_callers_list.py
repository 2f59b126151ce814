# %%
"""Right numbers, but the caller's list of lengths is counted up on the way."""

LOSES = {"q5-values", "q5-hidden"}


# %% answer="q5"
def cache_account(shape, lengths, layout, context, page, element_bytes=2):
    token = 2 * shape.layers * shape.kv_heads * shape.head_width * element_bytes
    if layout == "paged":
        return token * page * sum(-(-length // page) for length in lengths), token * len(lengths)
    if layout == "preallocated":
        return token * len(lengths) * context, token * len(lengths)
    if layout != "grown":
        raise ValueError(layout)
    held = token * sum(lengths)
    for number in range(len(lengths)):
        lengths[number] += 1
    return held, token * sum(lengths)
