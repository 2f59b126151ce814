# %%
"""Each rank sends each part straight to its owner: the right bytes, but p - 1 messages and not log2 p."""

LOSES = {"q1-traffic", "q1-hidden", "q2-traffic", "q2-hidden", "q4-hidden"}


# %% answer="q1"
def reduce_scatter(flat, members):
    me, parts = members.index(dist.get_rank()), flat.tensor_split(len(members))
    total = parts[me].clone()
    others = [i for i in range(len(members)) if i != me]
    posted = [dist.isend(parts[i], members[i]) for i in others]
    for i in others:
        arrived = torch.empty_like(total)
        dist.recv(arrived, members[i])
        total += arrived
    for each in posted:
        each.wait()
    return total
