# %%
"""Two levels that write into a copy where the memory is not contiguous: the tensor stays as it was."""

LOSES = {"q4-values", "q4-hidden"}


# %% answer="q4"
def two_level_all_reduce(tensor, ranks_per_node):
    rank, flat = dist.get_rank(), tensor.reshape(-1)
    first = rank // ranks_per_node * ranks_per_node
    node = list(range(first, first + ranks_per_node))
    twin = (rank + ranks_per_node) % (2 * ranks_per_node)
    part = reduce_scatter(flat, node)
    arrived = torch.empty_like(part)
    posted = dist.isend(part, twin)
    dist.recv(arrived, twin)
    posted.wait()
    flat.copy_(all_gather(part + arrived, len(flat), node))
    return tensor
