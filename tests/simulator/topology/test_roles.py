"""Roles and strategies: 25 roles in three domains, each with a text that can be embedded."""

from __future__ import annotations

from collections import Counter

import numpy as np

from inframind_gym.simulator.workflow.roles import ROLES, RoleRule, roles_of
from inframind_gym.tasks import DOMAINS, load_role_embeddings


def test_the_roles_of_a_domain_are_a_block_of_the_table() -> None:
    # The kernel keeps the first role and the number of roles of each domain.
    for domain in DOMAINS:
        indices = roles_of(domain)
        assert indices == tuple(range(indices[0], indices[0] + len(indices)))
        assert {ROLES[index].domain for index in indices} == {domain}
    assert sorted(i for domain in DOMAINS for i in roles_of(domain)) == list(range(25))


def test_names_are_unique_within_a_domain_and_texts_everywhere() -> None:
    assert Counter(role.domain for role in ROLES) == {"Math": 12, "Code": 7, "Commonsense": 6}
    assert len({(role.domain, role.name) for role in ROLES}) == 25
    assert len({role.text for role in ROLES}) == 25
    assert all(role.text == f"{role.name}: {role.description}" for role in ROLES)


def test_every_role_has_an_embedding_of_its_own_of_length_one() -> None:
    embeddings = load_role_embeddings()
    assert embeddings.shape == (25, 384)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=2e-3)  # from float16
    likeness = embeddings @ embeddings.T
    np.fill_diagonal(likeness, 0.0)
    assert likeness.max() < 0.99


def test_role_rules_keep_the_numbers_that_checkpoints_hold() -> None:
    assert {rule.name: rule.value for rule in RoleRule} == {"SINGLE": 0, "DOUBLE": 1, "CODER": 2}
