# %%
"""Greedy: the layer with the most bytes for a FLOP goes first, one layer after the other, until it fits."""

LOSES = {"q2-values", "q2-long", "q2-hidden", "q4-fits", "q4-hidden"}


# %% answer="q2"
def best_plan(costs, budget):
    segments = []
    order = sorted(range(len(costs)), key=lambda n: (costs[n].input - costs[n].saved) / costs[n].flops)
    for n in order:
        if plan_cost(costs, segments)[0] <= budget:
            return segments
        segments = sorted([*segments, (n, n + 1)])
    if plan_cost(costs, segments)[0] > budget:
        raise ValueError(f"nothing fits into {budget}")
    return segments
