"""Assignment: which agent takes a task, and on which provider, when agents get overloaded.

settings, rules, simulate   constants; load and rewards; tasks and answers that are drawn
coordinator                 the window of assignments, Q-learning over it, fixed routers
agents, app                 agents and judge; training graph and production, over the same steps
cli, plots                  terminal and pictures
"""
