# %%
"""Tries all plans: right for small chains, and never done with sixty layers."""

LOSES = {"q2-long", "q2-hidden"}


# %% answer="q2"
def best_plan(costs, budget):
    best = None
    for plan in every_plan(len(costs)):
        peak, again = plan_cost(costs, plan)
        if peak <= budget and (best is None or again < best[0]):
            best = again, plan
    if best is None:
        raise ValueError(f"nothing fits into {budget}")
    return best[1]
