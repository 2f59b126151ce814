# %%
"""The peak off by one tensor: a segment's input is counted as waiting and as saved."""

LOSES = {"q1-values", "q1-refuses", "q1-hidden"}


# %% answer="q1"
def plan_cost(costs, segments):
    held = peak = again = at = 0
    for start, stop in [*segments, (len(costs), None)]:
        if start < at or (stop is not None and not start < stop <= len(costs)):
            raise ValueError("wrong segments")
        held += sum(cost.saved for cost in costs[at:start])
        peak = max(peak, held)
        if stop is not None:
            held += costs[start].input
            peak = max(peak, held + sum(cost.saved for cost in costs[start:stop]))
            again += sum(cost.flops for cost in costs[start:stop])
            at = stop
    return peak, again
