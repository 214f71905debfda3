"""`python -m inframind_gym` is the command `inframind`."""

from inframind_gym.cli import app

app()
