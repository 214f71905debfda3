"""The fit of the shipped constants, on file, and a replay of the measured runs behind it.

`fitted/b200-2gpu.json` was written by `benchmarks/fit/measured.py`, last in revision fba594e0, and
`fitted/outcomes.json` by `benchmarks/fit/outcomes.py`, last in revision 1b21958a.
"""
