"""Pages of lesson 17 and its lab: the planner beside published runs, a run on torchrun's ranks, simulated clusters."""
