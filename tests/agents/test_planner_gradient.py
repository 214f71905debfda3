"""The planner's gradient written by hand is that of torch's autograd."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from agents.inframind.planner_gradient import PlannerGradient, Plans
from agents.planner.net import PlannerNet, weights_of
from inframind_gym.tasks import load_tasks
from tests.agents.gradients import gradients_of

TASK_WEIGHT, VAE_WEIGHT = 1.3, 0.7


@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-10), (np.float32, 1e-3)])
def test_losses_and_gradients_are_those_of_torch(dtype, near):
    rng = np.random.default_rng(0)
    tasks = load_tasks("builtin", split="train")
    rows = rng.choice(len(tasks), 40, replace=False)
    query, domain = tasks.embeddings[rows].astype(float), tasks.domain[rows].astype(np.int64)
    advantage = rng.standard_normal(40)
    torch.manual_seed(3)
    net = PlannerNet().double()
    with torch.no_grad():
        for parameter in net.parameters():  # far from uniform; the roles' start is not 0
            parameter.mul_(2.0).add_(0.02 * torch.randn(parameter.shape))
    x, d = torch.tensor(query), torch.tensor(domain)
    plan = net.sample(x, d, torch.rand(40, 8, generator=torch.Generator().manual_seed(0)).double())
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of the noise
    try:
        out = net(x, d, torch.Generator().manual_seed(1), quiet=True)
        generator = torch.Generator().manual_seed(1)
        noise = tuple(torch.randn(n, 64, generator=generator).numpy() for n in (40, 6, 25))
        log_prob = net.log_prob_of(out, plan.topology, plan.num_agents, plan.roles)
    finally:
        torch.set_default_dtype(before)
    task_loss = F.cross_entropy(out.task_logits, d)
    loss = -(log_prob * torch.tensor(advantage)).mean()
    (loss + TASK_WEIGHT * task_loss + VAE_WEIGHT * out.vae_loss).backward()

    mine = PlannerGradient(weights_of(net), dtype)
    mine.parameters.gradient[:] = np.nan  # all of it is written
    plans = Plans(plan.topology.numpy(), plan.num_agents.numpy(), plan.roles.numpy())
    found = mine.forward(query, domain, plans, tuple(part.astype(dtype) for part in noise))
    assert found.log_prob == pytest.approx(log_prob.detach().numpy(), rel=near, abs=near)
    assert -found.task_log_prob.mean() == pytest.approx(task_loss.item(), rel=near)
    assert found.vae_loss == pytest.approx(out.vae_loss.item(), rel=near)
    mine.backward(
        (-advantage / 40).astype(dtype), np.full(40, -TASK_WEIGHT / 40, dtype), VAE_WEIGHT
    )
    gradients = gradients_of(mine.parameters)
    assert set(gradients) == {name for name, _ in net.named_parameters()}
    for name, parameter in net.named_parameters():
        expected = parameter.grad.numpy()
        assert gradients[name].dtype == dtype
        # A softmax over keys does not see what is added to all of them: 0 but for rounding.
        scale = 1e-3 if name.endswith("key.bias") else float(abs(expected).max())
        assert gradients[name] == pytest.approx(expected, abs=near * scale), name


def test_noise_has_its_distribution_and_comes_from_its_seed():
    mine = PlannerGradient(weights_of(PlannerNet()))
    noise = mine.noise(np.random.default_rng(0), 500)
    assert [part.shape for part in noise] == [(500, 64), (6, 64), (25, 64)]
    assert abs(noise[0].mean()) < 0.02 and noise[0].std() == pytest.approx(1.0, abs=0.02)
    again = mine.noise(np.random.default_rng(0), 500)
    assert all(np.array_equal(a, b) for a, b in zip(noise, again, strict=True))
