"""Assignment: which agent takes a task, and on which provider, when agents get overloaded.

rules, simulate        load and rewards; constants, drawn tasks and answers, servers with queues
optimum                the best policy of the simulated team, by dynamic programming
agents                 agents and judge; the window of assignments, Q-learning over it
app                    training graph and production, over the same steps
"""
