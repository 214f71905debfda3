"""The family of `InfraMind-Stream-v0`: its cells, suites, players, metrics and tables."""
