"""MasRouter (ACL 2025): plans a query and picks models by the meaning of its text alone.

The planner, which InfraMind's starts from, is `agents/planner`.

    net.py           the router that draws a model for every agent (PyTorch)
    idle_queries.py  single queries on idle servers, and what they cost in dollars
    training.py      REINFORCE on them
    policy.py        the trained policy, in NumPy
"""
