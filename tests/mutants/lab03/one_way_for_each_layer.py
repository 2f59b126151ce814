# %%
"""Remembers one way to each layer, the cheapest, whatever it holds."""

LOSES = {"q2-values", "q2-long", "q2-hidden", "q4-fits", "q4-hidden"}


# %% answer="q2"
def best_plan(costs, budget):
    """Per layer only the cheapest way: no bytes in the state."""
    best = [(0, 0, [])] + [None] * len(costs)
    for i in range(len(costs)):
        if best[i] is None:
            continue
        flops, held, plan = best[i]
        steps = [(i + 1, flops, held + costs[i].saved, plan)] if held + costs[i].saved <= budget else []
        inside = held
        for j in range(i, len(costs)):
            inside += costs[j].saved
            flops += costs[j].flops
            if inside <= budget:
                steps.append((j + 1, flops, held + costs[i].input, plan + [(i, j + 1)]))
        for j, f, h, p in steps:
            if best[j] is None or (f, h) < best[j][:2]:
                best[j] = (f, h, p)
    if best[-1] is None:
        raise ValueError(f"budget {budget}")
    return best[-1][2]
