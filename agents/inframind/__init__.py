"""InfraMind: a PPO-Lagrangian executor and a REINFORCE planner on the closed loop.

Source: `spec/inframind.md` §4. `lagrangian: paper` has that text's networks, losses, multiplier and
schedules; `dual_critic` and `pid` replace its advantage and its multiplier.

    training.py           the loop: plays rounds, feeds the learner, validates, saves, resumes
    learner.py            what is learned from a batch of finished queries: losses, updates
    advantages.py         what each decision earned
    lagrangian.py         the multiplier
    executor_gradient.py  the executor's network and its gradient; of layers.py, with flat_adam.py
    planner_gradient.py   the planner's (its network is `agents/planner`)
    rollouts.py           where experience is made, in shards; rounds.py: what is played when
    config.py progress.py speed.py
    policy.py             the trained policy; executor_inference.py: its executor, without gradients

What the text leaves open, or where this differs from it:

- Sweeps run side by side, and rows that run together are at different rates, so that a batch mixes
  them; the text sweeps one rate after the other.
- The weights that act are up to a phase older than those that learn (`losses/lag_kl`).
- Adam's learning rates, its epsilon, gradient norms clipped at 0.5 and orthogonal initial weights
  are ours. With the few epochs of the shipped configuration its early stopping cannot be reached.
- The planner chooses among the roles of a query's true domain; what its task classifier finds is
  learned (the task loss) and not used.
- The last batch of a round takes what is left over, up to 127 queries.

A run that is killed goes on from its last round, and a round from which a worker is lost is played
again: the result is the same, bit for bit, for any number of workers.
"""
