"""Workflows on servers: queries arrive, are planned and routed, and their calls are answered.

topology, roles                      how agents work together
params, state                         constants and state of a batch of episodes, as arrays
workflow                              one query's graph: which call follows which
lifecycle                             a query from its arrival to its final answer
dispatch                              who decides what, and when
event_loop                            all of this on simulated servers, compiled
backend, backend_loop                 the same rules on any other `Backend`, in its own time
scripted_backend                      a `Backend` that follows a script
"""
