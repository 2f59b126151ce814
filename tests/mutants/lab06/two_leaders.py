# %%
"""One rank of each node collects, crosses and answers: the cable is content, the leader sends 4 n."""

LOSES = {"q4-hidden"}


# %% answer="q4"
def two_level_all_reduce(tensor, ranks_per_node):
    rank = dist.get_rank()
    first = rank // ranks_per_node * ranks_per_node
    node = list(range(first, first + ranks_per_node))
    twin = (rank + ranks_per_node) % (2 * ranks_per_node)
    total = tensor.reshape(-1).clone()
    arrived = torch.empty_like(total)
    if rank != first:
        dist.send(total, first)
        dist.recv(total, first)
        return tensor.copy_(total.view(tensor.shape))
    for other in node[1:]:
        dist.recv(arrived, other)
        total += arrived
    posted = dist.isend(total, twin)
    dist.recv(arrived, twin)
    posted.wait()
    total = total + arrived
    for other in node[1:]:
        dist.send(total, other)
    return tensor.copy_(total.view(tensor.shape))
