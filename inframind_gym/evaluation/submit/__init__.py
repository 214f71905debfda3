"""Submissions: what is checked and played again, and the public board of all of them."""
