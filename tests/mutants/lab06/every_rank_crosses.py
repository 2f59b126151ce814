# %%
"""All-reduce inside the node, and then every rank sends the whole sum over the slow link."""

LOSES = {"q4-cable", "q4-hidden"}


# %% answer="q4"
def two_level_all_reduce(tensor, ranks_per_node):
    rank = dist.get_rank()
    first = rank // ranks_per_node * ranks_per_node
    node = list(range(first, first + ranks_per_node))
    twin = (rank + ranks_per_node) % (2 * ranks_per_node)
    whole = all_gather(reduce_scatter(tensor.reshape(-1), node), tensor.numel(), node)
    arrived = torch.empty_like(whole)
    posted = dist.isend(whole, twin)
    dist.recv(arrived, twin)
    posted.wait()
    return tensor.copy_((whole + arrived).view(tensor.shape))
