"""The one way to a model: service, providers, prices, token budgets."""
