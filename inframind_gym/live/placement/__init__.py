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

The traps of sleeping servers, and the answers:

- *A request in flight is cut by /sleep, with status 200.* A server is drained first: nothing new is
  sent, and /sleep is called after the last answer, with `mode=wait` for calls of others. An answer
  that ends with `finish_reason` abort all the same is a failure, and is asked for again.
- *A request to a sleeper hangs while /health says 200.* A server is held from the decision on,
  until it was woken up, reports that it is awake and was checked.
- *Waking fails when memory is taken.* It is put to sleep again; if that fails too, it is stopped.
  The model is not ACTIVE, the failure is counted and reported, its block is closed for a while.
- *The first sleep is slower.* It is left out of the observed times.
- *A server can die, or hang, in any phase.* Its calls wait again; the rest of it is ended.
"""
