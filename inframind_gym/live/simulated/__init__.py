"""Simulated servers: the surrogate's kernel in real time, behind vLLM's HTTP.

`inframind pool up --simulate` starts one process for a pool (`process`). `engine` keeps the kernel
at the wall clock, `server` is the front of one model with its metrics and faults, `answers` what it
reads and writes.
"""
