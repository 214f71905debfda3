"""Foresight: what would come of a query, for the bounds alone. No contestant may import it."""
