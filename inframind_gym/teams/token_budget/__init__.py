"""Token budget: which of three agents may still spend tokens, and when to stop.

settings, rules       constants; budget, scores and what is open next
simulate, optimum     the simulated task; its exact optimum, over the same rules
app                   prompts, answers and drawn answers; the loop with its hard ceiling
"""
