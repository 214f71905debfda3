"""Training of the policy `bid_price` (`inframind_gym.policies.bid_price`).

config.py      configuration
survey.py      episodes that workers play; recipes at idle servers
estimation.py  estimates from records: chances of right answers, effects of load
search.py      prices, by CMA-ES
training.py    the training from stage to stage, which can be resumed
"""
