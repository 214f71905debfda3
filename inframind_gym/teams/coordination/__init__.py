"""Coordination: what a supervisor of five agents does next before a deadline.

What application and environment share:

settings, rules        constants; time, deadlines, fallback, reward
state, outcomes        what is done and open; what an action came to

The simulated question:

question, calls, simulate    the truth, calls of agents, and what comes of them
optimum, scenarios           the exact optimum; questions whose facts are given

The application:

system, session, graph       a query in and an answer out; one query; its nodes
supervisor, workers, work    who decides; agents and their calls; the product so far
agents, reading, contracts   prompts, answers read back, and their types
reports, response, audit     outcomes of agents' work; the answer; the log of a query
retrieval/, searching        passages of a corpus; screened searches
grounding, abstention        an answer against its sources, by words
inputs, screen, context      what a query is given; prompt injection; length of a conversation
lexical, simulated, clock    rules that stand in for a model; time
serving, faults              the team's server and its speed; faults on purpose
command, chat, report, options, acceptance    terminal, settings, scenarios that are checked
"""
