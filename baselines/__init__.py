"""Fitting and training of the baselines, whose policies are in `inframind_gym.policies`."""
