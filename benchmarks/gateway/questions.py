"""Questions that a model of 135 million parameters can answer, with graders.

One-digit sums, capitals, copying a word and writing JSON. No yes or no and no choice of letters:
such a model gives one constant answer to these.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

import numpy as np

_CAPITALS: Final = (
    "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna "
    "Belgium:Brussels Poland:Warsaw Greece:Athens Turkey:Ankara Russia:Moscow Ukraine:Kyiv "
    "Sweden:Stockholm Norway:Oslo Finland:Helsinki Denmark:Copenhagen Ireland:Dublin "
    "Hungary:Budapest Romania:Bucharest Bulgaria:Sofia Serbia:Belgrade Croatia:Zagreb "
    "Iceland:Reykjavik Egypt:Cairo Kenya:Nairobi Nigeria:Abuja Ghana:Accra Ethiopia:Addis "
    "Morocco:Rabat Tunisia:Tunis Japan:Tokyo China:Beijing India:Delhi Nepal:Kathmandu "
    "Thailand:Bangkok Vietnam:Hanoi Indonesia:Jakarta Malaysia:Lumpur Iran:Tehran Iraq:Baghdad "
    "Canada:Ottawa Mexico:Mexico Cuba:Havana Peru:Lima Chile:Santiago Argentina:Aires "
    "Colombia:Bogot Brazil:Bras Australia:Canberra Syria:Damascus "
)
_WORDS: Final = (
    "lantern river copper velvet orchard thunder pebble harbor saddle candle meadow anchor feather "
    "tunnel pepper ribbon castle walnut bucket planet mirror ladder button garden marble pocket "
    "basket kitten hammer needle"
)
_NAMES: Final = ["Ada", "Ben", "Carla", "Dan", "Eva", "Finn", "Greta", "Hugo", "Iris", "Jonas"]


class Question(NamedTuple):
    """A question; `kind` is sum, capital, copy or json."""

    id: str
    kind: str
    text: str
    wanted: str

    @property
    def domain(self) -> str:
        """Domain that a router is given."""
        return {"sum": "Math", "json": "Code"}.get(self.kind, "Commonsense")

    def is_right(self, answer: str) -> bool:
        """Grade an answer."""
        if self.kind == "sum":  # the last number: models write the sum out
            found = re.findall(r"\d+", answer)
            return bool(found) and found[-1] == self.wanted
        if self.kind == "json":
            return any(_is_json(part, self.wanted) for part in re.findall(r"\{[^{}]*\}", answer))
        if self.kind == "copy":
            return answer.strip().strip(".\"'!").lower() == self.wanted
        return self.wanted.lower() in answer.lower()


def questions(part: str) -> list[Question]:
    """Return the questions of a part, "fit" or "play": half of all, in the same mixture."""
    sums = [
        Question(f"sum-{a}-{b}", "sum", f"What is {a} + {b}?", str(a + b))
        for a in range(1, 10)
        for b in range(1, 10)
    ]
    pairs = [pair.split(":") for pair in _CAPITALS.split()]
    capitals = [
        Question(f"capital-{country}", "capital", f"What is the capital of {country}?", capital)
        for country, capital in pairs
    ]
    copies = [
        Question(f"copy-{word}", "copy", f"Repeat this word, and nothing else: {word}", word)
        for word in _WORDS.split()
    ]
    objects = []
    for k, name in enumerate(_NAMES):
        for age in range(7 + k, 67 + k, 15):
            wanted = json.dumps({"name": name, "age": age})
            like = json.dumps({"name": "Bo", "age": 3})
            text = f'Write a JSON object with "name" as "{name}" and "age" as {age}, like {like}.'
            objects.append(Question(f"json-{name}-{age}", "json", text, wanted))
    found = []
    for of in (sums, capitals, copies, objects):
        order = np.random.default_rng(0).permutation(len(of))
        found += [of[k] for k in sorted(order[part == "play" :: 2].tolist())]
    return found


def _is_json(text: str, wanted: str) -> bool:
    try:
        return bool(json.loads(text) == json.loads(wanted))
    except ValueError:
        return False
