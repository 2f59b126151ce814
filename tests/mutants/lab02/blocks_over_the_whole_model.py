# %%
"""Blocks of 256 elements counted over all parameters together, and Adafactor's whole memory of the squares."""

LOSES = {"q2-values", "q2-hidden"}


# %% answer="q2"
def states(shape, recipe):
    sizes = [size for part in tensors(shape).values() for size in part]
    count = sum(map(math.prod, sizes))
    if recipe == "adamw":
        return MemoryAccount(4 * count, 4 * count, 8 * count + 4 * len(sizes))
    if recipe == "adafactor":
        return MemoryAccount(4 * count, 4 * count, 4 * count)
    if recipe == "8bit":
        return MemoryAccount(2 * count, 2 * count, 6 * count + 8 * -(-count // 256))
    raise ValueError(recipe)
