"""Routing: the model and strategy of each call, and the plan of a query.

executor, planner, stream   the environments; base: what they share, with every argument
live                        the same on live servers; vector: the same in a compiled batch
observation, actions        spaces, and the code that writes observations
rendering                   the picture
reward                      reward and cost of a step
config                      the arguments, checked
layout, spec                what a policy may read: places and units, facts of the run
simulation, entry           streams on simulated servers, and their compiled entry points
planner_simulation          plans that an executor carries out
backend_simulation          one stream on any other backend
"""
