"""Training of the learned policies; what plays their checkpoints is `inframind_gym.policies`."""
