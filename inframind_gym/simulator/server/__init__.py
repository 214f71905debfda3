"""vLLM servers in virtual time: the rules of the V1 scheduler, compiled.

pool                pools of GPUs and models, server cards (YAML)
state               records and arrays of a batch of servers
scheduler           one engine step: running requests first, then waiting ones
queue               the waiting queue, ordered by priority and submission
kv_cache            KV blocks, prefix caching
async_scheduling    planning a step while the one before it runs
engine              stretches of steps in closed form; submit, next end, finish
telemetry           metrics as a router polls them
replay              given requests through given servers, without workflows
surrogate_backend   the same servers behind the `Backend` protocol
"""
