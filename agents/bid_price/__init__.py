"""Training of the policy `bid_price` (`inframind_gym.policies.bid_price`).

survey.py      episodes that workers play; recipes at idle servers
estimation.py  estimates from records: chances of right answers, effects of load
program.py     prices at an arrival rate, by linear programming
training.py    configuration, and the training from stage to stage, which can be resumed
"""
