"""A supervisor over router, planner, retrieval, synthesis and validation, before a deadline."""
