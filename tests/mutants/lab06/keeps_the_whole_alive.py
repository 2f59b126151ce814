# %%
"""Returns a view of the whole sum: each rank holds n bytes for its n/p."""

LOSES = {"q1-values", "q1-hidden"}


# %% answer="q1"
def reduce_scatter(flat, members):
    me, count, first = members.index(dist.get_rank()), len(members), 0
    ends = [0]
    for part in flat.tensor_split(count):
        ends.append(ends[-1] + len(part))
    total = flat.clone()
    while count > 1:
        count //= 2
        keep, give = (first + count, first) if me & count else (first, first + count)
        mine = total[ends[keep] : ends[keep + count]]
        arrived = torch.empty_like(mine)
        posted = dist.isend(total[ends[give] : ends[give + count]], members[me ^ count])
        dist.recv(arrived, members[me ^ count])
        posted.wait()
        mine += arrived
        first = keep
    return total[ends[first] : ends[first + 1]]
