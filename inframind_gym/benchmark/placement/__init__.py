"""The family of `InfraMind-Placement-v0`: clusters, demands and how placements are judged."""
