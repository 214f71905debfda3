"""Work that is spread over processes or over a Ray cluster, with the same result on any number.

hosts.py      where work is done: a process of this machine; ray_hosts.py: an actor on Ray
crew.py       workers that take jobs from a queue
fleet.py      a fixed number of stateful shards
"""
