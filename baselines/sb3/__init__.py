"""Stable-Baselines3 on InfraMind-Executor-v0: PPO, A2C, DQN and sb3-contrib's MaskablePPO.

    python -m baselines.sb3 --algorithm ppo --seed 0 --out runs/sb3_ppo/seed0
    inframind bench run --suite quick --policies sb3_ppo:runs/sb3_ppo/seed0 --out results/ppo

Training needs the extra `agents`; a trained policy is played with NumPy alone.
"""
