# %%
"""Nobody sends anything, which is as few bytes and messages as there can be, and wrong."""

LOSES = {
    "q1-values",
    "q1-traffic",
    "q1-hidden",
    "q2-values",
    "q2-traffic",
    "q2-hidden",
    "q4-values",
    "q4-cable",
    "q4-messages",
    "q4-hidden",
}


# %% answer="q1"
def reduce_scatter(flat, members):
    return flat.tensor_split(len(members))[members.index(dist.get_rank())].clone()


# %% answer="q2-all-reduce"
def all_reduce(tensor, op="sum"):
    return tensor


# %% answer="q4"
def two_level_all_reduce(tensor, ranks_per_node):
    return tensor
