"""Log-probabilities of completions, and distributions over labels."""

from dispatcher.vllm.scoring.classifying import classify
from dispatcher.vllm.scoring.prompts import Prompt
from dispatcher.vllm.scoring.records import (
    Boundary,
    Classification,
    Method,
    Mode,
    Score,
    ScoredToken,
    ScoringError,
)
from dispatcher.vllm.scoring.scoring import score
from dispatcher.vllm.scoring.spelling import Spellings
from dispatcher.vllm.scoring.wire import Wire

__all__ = [
    "Boundary",
    "Classification",
    "Method",
    "Mode",
    "Prompt",
    "Score",
    "ScoredToken",
    "ScoringError",
    "Spellings",
    "Wire",
    "classify",
    "score",
]
