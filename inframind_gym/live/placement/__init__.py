"""Placement on live servers: the decisions of `InfraMind-Placement-v0` carried out with vLLM.

    with LivePlacement(live_placement_config({"pool": "cpu-tiny"})) as cluster:
        cluster.begin(seed=0)  # brings up the models that an episode begins with
        policy.reset(spec_of(cluster), [0])
        seen = cluster.observation, contexts(cluster, rows), rows
        cluster.decide_by(lambda: policy.act_batch(*seen)[0])  # and goes on for δt2

Calls are routed and answered while the cluster is in `decide_by`, `decide` or `step`. During
`decide_by` the policy runs on a thread; between two calls of the others nothing is routed
(`late_decisions` and `unrouted_s` of the summary).

An instance is a vLLM process of its own. LOADING is its start, WAKING is `POST /wake_up`, SLEEPING
`POST /sleep`, VANISHING its end. The records and all rules are the simulation's.

    cluster     episodes and decision intervals
    conductor   phases of all instances, and servers that die
    instance    phases of one instance, on threads
    server      its process: start, sleep, wake up, stop
    traffic     calls on their way
    events      the simulation's rules, applied to what servers did; compiled
    records     what is written, and the clock

What is done about servers that hang, die or sleep by themselves: docs/live.md.
"""
