"""`python -m inframind_gym` is the command `inframind`."""

from inframind_gym.cli import app

if __name__ == "__main__":
    app()
