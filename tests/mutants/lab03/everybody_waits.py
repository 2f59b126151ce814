# %%
"""A sum instead of a maximum over moments: all that waits between the passes, and the largest segment on top."""

LOSES = {"q1-values", "q1-hidden"}


# %% answer="q1"
def plan_cost(costs, segments):
    inside = {n for start, stop in segments for n in range(start, stop)}
    ends = [0, *(end for segment in segments for end in segment), len(costs)]
    if ends != sorted(ends) or any(start == stop for start, stop in segments):
        raise ValueError("wrong segments")
    waits = sum(cost.saved for n, cost in enumerate(costs) if n not in inside)
    waits += sum(costs[start].input for start, _ in segments)
    extra = [sum(cost.saved for cost in costs[start:stop]) - costs[start].input for start, stop in segments]
    return waits + max(extra, default=0), sum(costs[n].flops for n in inside)
