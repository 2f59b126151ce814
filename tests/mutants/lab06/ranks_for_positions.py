# %%
"""Takes the rank of the world for the position in the list of members."""

LOSES = {"q1-values", "q1-hidden", "q4-values", "q4-cable", "q4-messages", "q4-hidden"}


# %% answer="q1"
def reduce_scatter(flat, members):
    me, count, first = dist.get_rank(), len(members), 0
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
    return total[ends[first] : ends[first + 1]].clone()
