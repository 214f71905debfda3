"""The shipped tasks."""

from __future__ import annotations

from typing import Final

from inframind_gym.teams.assignment.model import task_bank

TASK_BANK: Final = task_bank()
