"""The fake vLLM server: shipped, so that users can rehearse their own jobs.

async with FakeServer(FakeServerSettings(models=("my-model",))) as server:
    server.inject(Reset(), Match(text="row-7"))
    ...  # point the job at server.url
"""

from dispatcher.testing.engine import Engine, EngineLoad, EngineSettings
from dispatcher.testing.faults import (
    Die,
    Drop,
    Ending,
    Freeze,
    Hang,
    Injection,
    Match,
    Refuse,
    Reset,
    Respond,
    Slow,
    Spoil,
    Spoilage,
)
from dispatcher.testing.flights import RequestRecord
from dispatcher.testing.server import FakeServer, serve_fake
from dispatcher.testing.settings import FakeServerSettings

__all__ = [
    "Die",
    "Drop",
    "Ending",
    "Engine",
    "EngineLoad",
    "EngineSettings",
    "FakeServer",
    "FakeServerSettings",
    "Freeze",
    "Hang",
    "Injection",
    "Match",
    "Refuse",
    "RequestRecord",
    "Reset",
    "Respond",
    "Slow",
    "Spoil",
    "Spoilage",
    "serve_fake",
]
