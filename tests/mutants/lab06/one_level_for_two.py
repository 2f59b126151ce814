# %%
"""The flat all-reduce of eight ranks, which knows nothing of the cable."""

LOSES = {"q4-cable", "q4-messages", "q4-hidden"}


# %% answer="q4"
def two_level_all_reduce(tensor, ranks_per_node):
    return all_reduce(tensor)
