"""Workflows on servers: queries arrive, are planned and routed, and their calls are answered.

topology, roles      how agents work together
state                constants and state of a batch of episodes, as arrays
lifecycle            a query from its arrival to its final answer; which call follows which
dispatch             who decides what, and when; the event loop on simulated servers, compiled
backend              the protocol of other servers, and one that follows a script
backend_loop         the same rules on any `Backend`, in its own time
"""
