"""Simulated servers: the surrogate's kernel in real time, behind vLLM's HTTP.

`inframind pool up --simulate` starts one process for a pool (`process.py`). `engine.py` keeps the
kernel at the wall clock, `server.py` is the front of one model, `completions.py` its work,
`asking.py` and `answers.py` what it reads and writes, `metrics.py` its `/metrics`, `faults.py`
breaks it on demand.
"""
