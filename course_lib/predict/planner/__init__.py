"""The planner: the legal ways to train a model on a cluster, and their costs. `plan` is the entry."""

from course_lib.predict.planner.cost import ACCOUNT, Cluster, Constants, constants_for, fitted
from course_lib.predict.planner.plan import Plan, Plans, plan

__all__ = ["ACCOUNT", "Cluster", "Constants", "Plan", "Plans", "constants_for", "fitted", "plan"]
