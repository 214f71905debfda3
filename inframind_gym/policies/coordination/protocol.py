"""The interface of coordination policies: actions (n,) 0-14."""

from __future__ import annotations

from typing import ClassVar

from inframind_gym.envs.coordination.context import CoordinationContext, CoordinationSpec
from inframind_gym.policies.protocol import BaseBatchPolicy, BatchPolicy

CoordinationPolicy = BatchPolicy[CoordinationSpec, CoordinationContext]


class BaseCoordinationPolicy(BaseBatchPolicy[CoordinationSpec, CoordinationContext]):
    """A policy without memory: `choose` is a function of the contexts.

    `sees_truth` is true for bounds that know the simulated questions.
    """

    sees_truth: ClassVar[bool] = False
