"""Coordination: what a supervisor of five agents does next before a deadline.

settings, rules               constants and data; state, time, deadlines, fallback, reward
simulate, optimum, scenarios  simulated questions, their exact optimum, acceptance scenarios

The application:

app, session                  a query in and an answer out; the graph of one query
agents, prompts, simulated    who works, what a model reads and answers, and rules in its place
retrieval, check              passages; injection, grounding, abstention
context, cli                  length of a conversation; commands
"""
