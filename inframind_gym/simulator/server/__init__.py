"""The surrogate: vLLM's continuous batching in virtual time, compiled."""

from inframind_gym.simulator.server.replay import SERVED, replay_requests
from inframind_gym.simulator.server.state import CARD, Cluster, allocate, card_record, cards

__all__ = ["CARD", "SERVED", "Cluster", "allocate", "card_record", "cards", "replay_requests"]
