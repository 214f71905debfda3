"""Placement on live servers: the decisions of `InfraMind-Placement-v0` carried out with vLLM.

    with LivePlacement(live_placement_config({"pool": "cpu-tiny"})) as cluster:
        cluster.begin(seed=0)  # brings up what an episode begins with
        policy.reset(spec_of(cluster), [0])
        seen = cluster.observation, contexts(cluster, rows), rows
        cluster.decide_by(lambda: policy.act_batch(*seen)[0])  # and goes on for δt2

Calls are routed and answered while the cluster is in `decide_by`, `decide` or `step`. The first
lets a policy think on a thread meanwhile; before the others nobody routes while the caller thinks
(`late_decisions` and `unrouted_s` of the summary).

An instance is a vLLM process of its own. What the simulation calls LOADING is starting it, WAKING
is `POST /wake_up`, SLEEPING `POST /sleep`, VANISHING its end. The records are the simulation's, and
so is every rule (`placement.live_events`): this package only carries out and reports. Each task has
a module:

- `config`: the keyword arguments, and what pool, cluster and demand must agree on.
- `server`: one server's process: start, sleep, wake up, stop.
- `link`: one server's connections: who watches it, who sends to it.
- `machine`: where servers run: makes them and their connections, taken by one process at a time.
- `phases`: what a phase does to a server, and what is done when that fails. On threads.
- `cluster`: episodes and decision intervals; `records`: what is written, and the clock;
  `conductor`: phases, and servers that die; `traffic`: calls on their way. On the caller's thread.
- `decision`: what a policy chooses, on a thread.
- `calls`: what is asked.
- `command`: `inframind pool place`.

The traps of sleeping servers (FACTS §3), and what is done about each:

- *A request in flight is cut by /sleep, with status 200.* A server is drained first: nothing new is
  sent, and /sleep is called when the last answer is there, with `mode=wait` for strangers' calls.
  Whatever ends with `finish_reason` abort all the same is a failure, and sent again.
- *A request to a sleeper hangs while /health says 200.* A server is held from the decision on,
  until it was woken up, says that it is awake and was looked at.
- *Waking fails when memory is taken.* It is put to sleep again; if that fails too, it is stopped.
  The model is not ACTIVE, the failure is counted and told, its block is closed for a while.
- *The first sleep is slower.* It is left out of the observed times.
- *A server can die, or hang, in any phase.* Its calls wait anew; what is left of it is ended.
"""
