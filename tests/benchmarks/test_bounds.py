"""Recipes of the informed bound: what servers can do, and where the search looks."""

import numpy as np

from inframind_gym.evaluation.bounds import first_recipes, neighbours, resources_of
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph


def test_models_that_share_a_gpu_share_its_time() -> None:
    """At a slowdown of 1.19 three models do less than one alone, at 0.25 more."""
    pool = load_pool("b200-2gpu")
    resources = resources_of(pool)
    assert resources.names == ("gpu0", "gpu1")
    np.testing.assert_array_equal(resources.rate, [1.0, 1.0])
    np.testing.assert_array_equal(resources.uses[:, 0], np.array(pool.gpu_index) == 0)
    gpus = tuple(gpu.model_copy(update={"colocation_slowdown": 0.25}) for gpu in pool.gpus)
    resources = resources_of(pool.model_copy(update={"gpus": gpus}))
    assert resources.names == (*pool.aliases, "gpu0", "gpu1")
    np.testing.assert_allclose(resources.rate, [1, 1, 1, 1, 1, 2 / 1.25, 3 / 1.5])


def test_neighbours_are_other_recipes_of_the_right_length() -> None:
    kinds = (RoleRule.SINGLE, RoleRule.DOUBLE)
    for recipe in first_recipes(6, kinds):
        found = neighbours(recipe, 6, kinds)
        assert recipe not in found and len(set(found)) == len(found)
        for topology, agents, kind, routes in found:
            assert len(routes) == graph(TOPOLOGIES[topology], agents).num_nodes
            assert kind in kinds and max(routes) < 6
            assert TOPOLOGIES[topology] != "CoT"
