"""Simulated servers: the surrogate's kernel in real time, behind vLLM's HTTP.

`inframind pool up --simulate` starts one process for a pool (`server`); `answers` is what it reads
and writes. Tests take the same servers, and script their answers.
"""
