# %%
"""AdamW without its step counters: 16 bytes a parameter and not one more."""

LOSES = {"q2-values", "q2-hidden"}


# %% answer="q2"
def states(shape, recipe):
    sizes = [size for part in tensors(shape).values() for size in part]
    count = sum(map(math.prod, sizes))
    if recipe == "adamw":
        return MemoryAccount(4 * count, 4 * count, 8 * count)
    if recipe == "adafactor":
        return MemoryAccount(4 * count, 4 * count, 4 * sum(map(sum, sizes)))
    if recipe == "8bit":
        blocks = sum(-(-math.prod(size) // 256) for size in sizes)
        return MemoryAccount(2 * count, 2 * count, 6 * count + 8 * blocks)
    raise ValueError(recipe)
