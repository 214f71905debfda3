"""Training of the policy `bid_price` (`inframind_gym.policies.bid_price`).

estimates.py   episodes that workers play, and estimates from their records
training.py    prices by linear programming, and the training from stage to stage
"""
