"""Token budget: which of three agents may still spend tokens, and when to stop.

settings, rules, state         constants, the ledger and the scores, what is open
simulate, chances, optimum     the simulated task, its chances, the exact optimum
orchestrator, agents, budget   the application: its loop, prompts and answers, the hard ceiling
evaluator, simulated, order    pre-flight and ratings; drawn answers; what a run is started with
command, server                terminal; REST and live events
"""
