"""Coordination: what a supervisor of five agents does next before a deadline.

settings, rules       constants and data; state, time, deadlines, fallback, reward
simulate              simulated questions
app                   a query in and an answer out; the graph of one query
agents, prompts       who works; what a model reads and answers, the context of a conversation
retrieval, check      passages; injection, grounding, abstention
"""
