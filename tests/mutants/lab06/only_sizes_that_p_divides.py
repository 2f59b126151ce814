# %%
"""Parts of len // p elements: what is left over at the end belongs to nobody."""

LOSES = {"q1-values", "q1-traffic", "q1-hidden", "q2-values", "q2-hidden", "q4-values", "q4-hidden"}


# %% answer="q1"
def reduce_scatter(flat, members):
    me, count, first = members.index(dist.get_rank()), len(members), 0
    size = len(flat) // count
    total = flat.clone()
    while count > 1:
        count //= 2
        keep, give = (first + count, first) if me & count else (first, first + count)
        mine = total[keep * size : (keep + count) * size]
        arrived = torch.empty_like(mine)
        posted = dist.isend(total[give * size : (give + count) * size], members[me ^ count])
        dist.recv(arrived, members[me ^ count])
        posted.wait()
        mine += arrived
        first = keep
    return total[first * size : (first + 1) * size].clone()
