"""Headway: every server has a price.

A query is answered by a *recipe*: a topology, a team of agents with their models, a strategy.
Headway surveys recipes at idle servers, learns what load does to calls, and puts a price on every
second of every server's slots, which never falls as load rises. A query that arrives gets the
recipe whose chance of a right answer within the budget, less the price of the work, is best. The
prices are what makes many queries share the servers: they are searched for on whole sweeps, so that
what a call costs the others is in them (congestion pricing; the Lagrange multipliers of the
servers' capacities, in the terms of `spec/inframind.md` §4.1, where one multiplier prices latency).
Every rate of arrivals has prices of its own: which models are worth using at all depends on it.

    recipes.py    what can be chosen
    survey.py     playing it, and what is seen
    study.py      what is learned from that
    marks.py      chances of a right answer, by which the search judges in place of luck
    lessons.py    all that was learned, as a checkpoint keeps it
    choice.py     the choice, compiled
    policy.py     choosing by prices, and its ablations
    agent.py      the policy that plays checkpoints
    config.py     the configuration of a training
    stages.py     its stages: survey, load, judging prices
    search.py     the search of the prices of every rate
    jobs.py       what workers play for a stage
    training.py   the training from stage to stage: saves, resumes
"""
