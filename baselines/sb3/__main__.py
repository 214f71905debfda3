"""`python -m baselines.sb3`: see `baselines.sb3.train`."""

import typer

from baselines.sb3.train import main

typer.run(main)
