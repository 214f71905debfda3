"""Which model lives on which GPU: the cluster behind `InfraMind-Placement-v0`.

Jobs of several agent calls arrive; every call needs one model; a model answers only where it is
awake on a GPU, and a GPU holds one awake model. Every `routing_interval_s` (δt1, 1 s) the calls
that are ready are routed; every `decision_interval_s` (δt2, 5 s) the agent decides for each GPU
which model to make active. Source: `spec/gpu_placement.md`; times and traps of sleeping servers:
FACTS §3. Each rule has a module; what the specification leaves open is decided there:

- `jobs`: jobs are the six topologies as graphs of calls, with a final call that decides.
- `service`: an instance batches continuously; a call is so many engine steps of work.
- `routing`: calls go to the awake instance of least drain latency that has room.
- `memory`: what a GPU's memory holds, who goes when room is needed.
- `instances`: the life of an instance, LOADING → ACTIVE ⇄ SLEPT → VANISHING, in finer steps.
- `choices`: which choices are legal, and what a choice sets in motion.
- `observe`: what the agent sees, number by number.
- `step`: the order of events of one decision interval.

Nothing in here decides: policies live in `inframind_gym/policies/placement/registry`, the flow networks that two of them
solve in `inframind_gym.policies.placement.flow`.
"""
