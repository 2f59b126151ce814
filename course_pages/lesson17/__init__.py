"""What the page of lesson 17 shows: the planner beside published runs, and runs that stop."""
