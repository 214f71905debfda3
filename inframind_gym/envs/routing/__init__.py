"""Routing: which model and strategy takes each call, and how a query is planned."""
