"""The planner that MasRouter and InfraMind share: topology, number of agents and roles of a query.

texts.py      what is embedded of topologies and roles, with the shipped embeddings
net.py        the network (PyTorch), of blocks.py: task classifier, VAE, GFusion, heads
inference.py  the same in NumPy: shipped policies act without torch
"""
