"""Where a call is served: one protocol, and the homes that implement it.

`pool` is the file that all of them read. `backend` is the protocol; `surrogate` implements it with
simulated servers, `scripted` with a script, `vllm` with live servers, which `launch` starts and
stops. `telemetry` is what a router is shown of them.
"""
