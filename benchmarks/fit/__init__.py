"""The fit of the shipped constants, on file, and the replay of the runs that it was made of.

`fitted/b200-2gpu.json` was written by `benchmarks/fit/measured.py`, last in revision fba594e0, and
`fitted/outcomes.json` by `benchmarks/fit/outcomes.py`, last in revision 1b21958a.
"""
