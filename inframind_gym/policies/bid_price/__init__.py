"""Bid prices: every second of every server's slots has a price, which rises with the load.

A query is answered by a *recipe*: a topology, a team of agents with their models, a strategy. When
a query arrives, each recipe's chance of a right answer within the budget is estimated, and the
price of the work it would cause is taken off; the best balance wins. The prices stand for what the
work costs other queries. This is the bid-price control of network revenue management, with servers
as the network's legs: K. Talluri and G. van Ryzin, "An Analysis of Bid-Price Controls for Network
Revenue Management", Management Science 44 (1998).

    recipes.py    the recipes, as a table
    model.py      estimates, prices, the compiled choice, and the checkpoint that keeps them
    policy.py     the policy that plays checkpoints, and its ablations

`agents/bid_price` trains it.
"""
