"""Reward and cost of a decision.

| term of the reward | |
|---|---|
| `quality` | points of true quality that the decision gained, over 100 |
| `tokens` | minus the price of its tokens, over 100 |

The price is in points of quality per token. With it the rule "stop when the marginal ROI falls
below the price" is the policy that is greedy by one step; what learning can gain beyond it is
credit for calls that pay later, the critic's above all.

True quality is the latent one that a held-out checker would measure; the observation has proxies of
it alone. The *cost* of a decision is the share of the budget that its tokens take. The pre-flight's
tokens are spent before the first decision: they count in the ledger, in no reward and in no cost.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

TERMS: Final = ("quality", "tokens")


def reward_terms(gain: Any, tokens: Any, price: float) -> NDArray[np.float64]:
    """Return the terms of k decisions, (k, 2), in the order of TERMS.

    Args:
        gain: (k,) points of true quality.
        tokens: (k,) of all calls of the decision.
        price: points of quality per token.
    """
    return np.stack([np.asarray(gain) / 100.0, -price * np.asarray(tokens) / 100.0], axis=1)
