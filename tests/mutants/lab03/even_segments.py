# %%
"""Segments of K layers each, as if the chain were even, with the K that fits."""

LOSES = {"q2-values", "q2-long", "q2-hidden", "q4-fits", "q4-hidden"}


# %% answer="q2"
def best_plan(costs, budget):
    n = len(costs)
    plans = [[], *([(start, min(start + K, n)) for start in range(0, n, K)] for K in range(1, n + 1))]
    fitting = [plan for plan in plans if plan_cost(costs, plan)[0] <= budget]
    if not fitting:
        raise ValueError(f"no K fits into {budget}")
    return min(fitting, key=lambda plan: plan_cost(costs, plan)[1])
