"""Assignment: which agent takes a task, and on which provider, when agents get overloaded.

`env` and `vector` are the environments; `config` checks their arguments. `simulation` holds the
batch, over the rules of `inframind_gym.teams.assignment`; `servers` are the queues of the queueing
form. `observation` and `reward` say what an agent sees and gets, `context` is the input of
policies, `rendering` the picture.
"""
