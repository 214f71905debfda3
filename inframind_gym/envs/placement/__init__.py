"""Placement: which model is awake on which GPU.

`env` and `vector` are the environments, with every argument and the end of an episode; `config`
checks the arguments. `observation` and `reward` are compiled into the loop of `entry`, over the
rules of `inframind_gym.simulator.placement`; `simulation` holds its arrays, `context` is the
input of policies, `rendering` the picture. `live` runs the same environment on live servers.
"""
