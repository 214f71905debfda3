"""Rules of the cluster behind `InfraMind-Placement-v0`: which model is awake on which GPU.

Jobs of several agent calls arrive; every call needs one model; a model answers only where it is
awake on a GPU, and a GPU holds one awake model. Every `routing_interval_s` (δt1, 1 s) the calls
that are ready are routed; every `decision_interval_s` (δt2, 5 s) the agent decides for each GPU
which model to make active.

- `episode`: jobs are the six topologies as graphs of calls, with a final call that decides; calls
  go to the awake instance of least drain latency, which batches continuously; the order of events.
- `instances`: what a GPU's memory holds, LOADING → ACTIVE ⇄ SLEPT → VANISHING, and decisions.

`state` has the records, `config` the YAML files. Observation, reward and the compiled
entry point are in `inframind_gym.envs.placement`, policies in `inframind_gym.policies.placement`.
"""
