"""The 25 roles that agents can play, by domain (names from MasRouter, ACL 2025; texts our own)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class RoleRule(IntEnum):
    """Rule by which the agents of a plan take roles; checkpoints hold these numbers."""

    SINGLE = 0  # roles that answer once
    DOUBLE = 1  # roles that answer, check and answer again
    CODER = 2  # roles that answer once and write code, which tests can prove


class Role(NamedTuple):
    """One role: its name, the domain it belongs to and what it does.

    `text` is what the role embedding is computed from.

    Attributes:
        name: unique within the domain.
        domain: one of DOMAINS.
        description: one sentence.
        calls: calls of a node: 2 where MasRouter's agent answers, has the answer processed and
            answers again (its role has a format for that second answer).
        writes_code: its answer is code, which tests that the task shows can prove.
    """

    name: str
    domain: str
    description: str
    calls: int = 1
    writes_code: bool = False

    @property
    def text(self) -> str:
        """`Name: description`, the form in which MasRouter embeds roles."""
        return f"{self.name}: {self.description}"


_MATH: Final = "Math"
_CODE: Final = "Code"
_COMMON: Final = "Commonsense"

ROLES: Final[tuple[Role, ...]] = (
    Role("AlgorithmEngineer", _MATH, "designs an efficient procedure that computes the answer."),
    Role("CertifiedAccountant", _MATH, "keeps track of quantities, units and money exactly."),
    Role("Economist", _MATH, "models costs, rates and trade-offs with equations."),
    Role("Engineer", _MATH, "breaks a practical problem into measurable parts and solves them."),
    Role("Inspector", _MATH, "checks each step of a solution and reports the first mistake."),
    Role("MathAnalyst", _MATH, "rewrites the problem with symbols and derives the result."),
    Role("MathSolver", _MATH, "solves the problem directly and states the final answer."),
    Role("MathTeacher", _MATH, "explains a solution step by step so that it can be followed."),
    Role("Mathematician", _MATH, "finds a rigorous argument, using theorems where they help."),
    Role("ProgrammingExpert", _MATH, "writes a short program whose output is the answer.", calls=2),
    Role("Scientist", _MATH, "forms a hypothesis and tests it against the given data."),
    Role("SoftwareDeveloper", _MATH, "turns the statement into code and runs it by hand.", calls=2),
    Role("AlgorithmDesigner", _CODE, "chooses the algorithm and data structures for a function."),
    Role("BugFixer", _CODE, "finds and repairs defects in a proposed implementation.", 2, True),
    Role("PlanSolver", _CODE, "plans the implementation first and then writes it.", 2, True),
    Role("ProgrammingExpert", _CODE, "writes a complete and correct function.", writes_code=True),
    Role("ProjectManager", _CODE, "splits the work into parts and defines their interfaces."),
    Role(
        "ReflectProgrammer", _CODE, "writes code, reviews it critically and improves it.", 2, True
    ),
    Role(
        "TestAnalyst", _CODE, "derives test cases, edge cases first, and checks the code.", 2, True
    ),
    Role("Critic", _COMMON, "challenges an answer and looks for what contradicts it."),
    Role("Economist", _COMMON, "judges a question by incentives, markets and policy."),
    Role("Historian", _COMMON, "places a question in its historical context."),
    Role("KnowledgeExpert", _COMMON, "recalls the facts that decide the question."),
    Role("Reflector", _COMMON, "weighs the arguments given so far and concludes.", calls=2),
    Role("Scientist", _COMMON, "explains by natural law, evidence and measurement."),
)


def roles_of(domain: str) -> tuple[int, ...]:
    """Return the indices into `ROLES` of the roles of `domain`, in order."""
    return tuple(index for index, role in enumerate(ROLES) if role.domain == domain)
