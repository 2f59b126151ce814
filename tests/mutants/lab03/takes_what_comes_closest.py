# %%
"""When nothing fits, it hands out the plan that keeps least, without a word."""

LOSES = {"q2-refuses", "q2-hidden", "q4-fits"}


# %% answer="q2"
def best_plan(costs, budget):
    ways = [{0: (0, [])}, *({} for _ in costs)]
    for start, first in enumerate(costs):
        for held, (flops, path) in ways[start].items():
            steps, inside = [(start + 1, held + first.saved, flops, path)] * (held + first.saved <= budget), held
            for stop in range(start + 1, len(costs) + 1):
                flops, inside = flops + costs[stop - 1].flops, inside + costs[stop - 1].saved
                if inside <= budget:
                    steps.append((stop, held + first.input, flops, [*path, (start, stop)]))
            for stop, bytes_, again, plan in steps:
                if again < ways[stop].get(bytes_, (again + 1,))[0]:
                    ways[stop][bytes_] = again, plan
    if not ways[-1]:
        return [(n, n + 1) for n in range(len(costs))]
    return min(ways[-1].values(), key=lambda way: way[0])[1]
