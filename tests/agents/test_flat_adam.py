"""Adam over one flat tensor is Adam."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from agents.flat_adam import EPS, FlatAdam  # noqa: E402


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))


def loss_of(net: torch.nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(16, 5, generator=torch.Generator().manual_seed(step))
    return (net(x) ** 2).sum() * (1 + step % 3)


@pytest.mark.parametrize("max_grad_norm", [0.5, 1e9])
def test_it_steps_as_torchs_own_with_clipped_gradients(max_grad_norm: float) -> None:
    mine, theirs = network(), network()
    flat = FlatAdam(mine, 0.01, max_grad_norm)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=EPS)
    for step in range(30):
        flat.zero_grad()
        loss_of(mine, step).backward()
        flat.step()
        adam.zero_grad()
        loss_of(theirs, step).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        adam.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_it_goes_on_from_a_state_and_keeps_to_loaded_weights() -> None:
    whole = network()
    flat = FlatAdam(whole, 0.01, 1.0)
    for step in range(10):
        if step == 4:
            state = flat.state("adam.")
            weights = {k: v.clone() for k, v in whole.state_dict().items()}
        flat.zero_grad()
        loss_of(whole, step).backward()
        flat.step()
    resumed = network(seed=1)
    again = FlatAdam(resumed, 0.01, 1.0)
    resumed.load_state_dict(weights)
    again.restore(state, "adam.")
    for step in range(4, 10):
        again.zero_grad()
        loss_of(resumed, step).backward()
        again.step()
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
