"""Families of the teams of agents: suites, players, metrics and tables, written once.

`family` has the teams; `assignment` and `token_budget` play theirs. A team brings an environment, a
registry of policies, metrics that are means over records, and a function that plays a batch.
"""
