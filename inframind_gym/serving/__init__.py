"""Where a call is served: one protocol, and the homes that implement it."""
