# %%
"""The full vector travels in every round; each rank then picks the half that it needs."""

LOSES = {"q1-traffic", "q1-hidden", "q2-traffic", "q2-hidden", "q4-hidden"}


# %% answer="q1"
def reduce_scatter(flat, members):
    me, count, first = members.index(dist.get_rank()), len(members), 0
    ends = [0]
    for part in flat.tensor_split(count):
        ends.append(ends[-1] + len(part))
    total = flat.clone()
    while count > 1:
        count //= 2
        keep = first + count if me & count else first
        mine = total[ends[keep] : ends[keep + count]]
        theirs = torch.empty_like(total)
        posted = dist.isend(total.clone(), members[me ^ count])
        dist.recv(theirs, members[me ^ count])
        posted.wait()
        mine += theirs[ends[keep] : ends[keep + count]]
        first = keep
    return total[ends[first] : ends[first + 1]].clone()
