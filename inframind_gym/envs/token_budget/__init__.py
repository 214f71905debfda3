"""InfraMind-TokenBudget-v0: which agent may still spend tokens, and when to stop.

config        arguments
env, vector   one team, many teams in a batch
simulation    the batch behind both
observation   numbers that an agent sees
reward        terms of the reward, and the cost
context       state as policies see it
"""
