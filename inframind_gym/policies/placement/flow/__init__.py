"""Placement as a min-cost flow: the specification's network, and one that corrects its defects.

`spec_network` is `spec/gpu_placement.md` to the letter, with networkx. `plus_network` is ours:
what a copy of a model is worth (`relief`), blocks for tensor-parallel groups, and an assignment.
Neither is imported with `inframind_gym`: networkx and SciPy come with the extra `placement`.
"""
