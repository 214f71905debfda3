"""From live servers to a surrogate of them, and how well it predicts what they do.

Sweeps are played on a live pool (`sweep.py`). On some of them server cards are fitted to the times
of the calls (`fit.py`); on the others, at loads that the fit has not seen, the simulated pool plays
the same arrivals and decisions, and the two are compared (`report.py`). As a command:

    inframind sim2real --pool cpu-tiny
"""
