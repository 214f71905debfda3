"""vLLM servers in virtual time: the rules of the V1 scheduler, compiled.

pool                pools of GPUs and models, server cards (YAML)
state               records and arrays of a batch of servers
scheduler           one engine step: waiting queue, KV blocks, prefix caching, async scheduling
engine              stretches of steps in closed form; submit, next end, finish
telemetry           metrics as a router polls them
faults              servers that are down or slow, time-outs; what happens next
open_loop           the kernel from outside: submit, abort, advance; replay of given requests
"""
