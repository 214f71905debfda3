"""Retrieval: passages of a folder of texts, three strategies to find them, rewriting of queries."""

from inframind_gym.teams.coordination.retrieval.corpus import Corpus, Passage
from inframind_gym.teams.coordination.retrieval.retriever import Retriever, deduplicate, fuse
from inframind_gym.teams.coordination.retrieval.rewriting import rewrite

__all__ = ["Corpus", "Passage", "Retriever", "deduplicate", "fuse", "rewrite"]
