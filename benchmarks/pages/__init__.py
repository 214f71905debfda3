"""What the pages under ``docs/`` that are written by a command have in common."""
