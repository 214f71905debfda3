"""InfraMind-Coordination-v0: what a supervisor of five agents does next before a deadline.

config        arguments
env, vector   one question, many questions in a batch
simulation    the batch behind both
observation   numbers that an agent sees
context       state as policies see it
"""
