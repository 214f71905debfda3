"""Token budget: which of three agents may still spend tokens, and when to stop."""
