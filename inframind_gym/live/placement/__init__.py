"""Placement on live servers: the decisions of `InfraMind-Placement-v0` carried out with vLLM.

An instance is a vLLM process of its own. LOADING is its start, WAKING is `POST /wake_up`, SLEEPING
`POST /sleep`, VANISHING its end. The records and all rules are the simulation's. Faults of servers
that hang, die or sleep by themselves, and what is done about them: docs/live.md.

    cluster     episodes, decision intervals, phases of all instances
    instance    one vLLM process on one block of GPUs
    traffic     records, clock, and calls on their way
    events      the simulation's rules, applied to what servers did; compiled
"""
