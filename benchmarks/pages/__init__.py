"""Tables, figures and regions of the pages under ``docs/``."""
