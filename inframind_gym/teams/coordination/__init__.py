"""Coordination: what a supervisor of five agents does next before a deadline.

settings, rules       constants and data; state, time, deadlines, fallback, reward
simulate, optimum     simulated questions, their exact optimum
app, agents, prompts  the application: the graph of a query, who works, what a model reads
retrieval, check      passages; injection, grounding, abstention
scenarios, cli        the eight acceptance scenarios; commands
"""
