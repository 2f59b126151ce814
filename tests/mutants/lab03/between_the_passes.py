# %%
"""Looks at the end of the forward pass alone, as if the peak were there."""

LOSES = {"q2-values", "q2-refuses", "q2-long", "q2-hidden", "q4-fits", "q4-hidden"}


# %% answer="q2"
def best_plan(costs, budget):
    ways = [{0: (0, [])}, *({} for _ in costs)]
    for start, first in enumerate(costs):
        for held, (flops, path) in ways[start].items():
            steps = [(start + 1, held + first.saved, flops, path)]
            for stop in range(start + 1, len(costs) + 1):
                flops += costs[stop - 1].flops
                steps.append((stop, held + first.input, flops, [*path, (start, stop)]))
            for stop, bytes_, again, plan in steps:
                if bytes_ <= budget and again < ways[stop].get(bytes_, (again + 1,))[0]:
                    ways[stop][bytes_] = again, plan
    if not ways[-1]:
        raise ValueError(f"nothing fits into {budget}")
    return min(ways[-1].values(), key=lambda way: way[0])[1]
