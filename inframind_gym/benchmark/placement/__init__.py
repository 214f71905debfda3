"""The family of `InfraMind-Placement-v0`: its cells, suites, players, metrics and tables."""
