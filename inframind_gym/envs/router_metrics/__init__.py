"""What a router does, as Prometheus metrics (`docs/metrics.md` lists them).

An environment is watched from outside, between its steps: nothing in the loop knows of it. What was
decided is read where it was carried out, so it is right whatever stands between the policy and the
environment, and the present state of the servers is read when somebody asks for it.
"""

from inframind_gym.envs.router_metrics.router import RouterMetrics

__all__ = ["RouterMetrics"]
