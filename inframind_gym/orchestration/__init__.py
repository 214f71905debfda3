"""The closed loop: queries arrive, are planned and routed, and servers answer their calls.

`simulation.Simulation` is what environments and benchmarks hold: a batch of loops on simulated
servers, advanced together by compiled code (`world`, `state`, `queries`, `machine`, `step`).
`planner.PlannerSimulation` has an executor carry out the agent's plans. `driven.DrivenSimulation`
is one loop on any `Backend` (`driver`), and `live.LiveSimulation` one on vLLM servers.
"""
