"""What one fake server is: its models, its speed, its manners."""

from dataclasses import dataclass, field

from dispatcher.testing.engine import EngineSettings


@dataclass(frozen=True, slots=True)
class FakeServerSettings:
    """A fake vLLM server's settings. The defaults answer at once, to anyone, as one small chat model."""

    models: tuple[str, ...] = ("fake-model",)
    """Served names. Answers carry the first one, as vLLM's do."""
    root: str | None = None
    """What the names are aliases of; None means the first name."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters: served under their own names, children of the first model."""
    max_model_len: int = 8192
    answer_tokens: int = 32
    """Mean length of an unconstrained answer. Lengths lie evenly between 1 and twice that."""
    embedding_dimensions: int = 8
    engine: EngineSettings | None = None
    """How long answers take; None answers at once, with as little work as can be."""
    api_key: str | None = field(default=None, repr=False)
    """Asked for under /v1 only, as vLLM does: /health, /metrics, /tokenize and others stay open."""
    dev_mode: bool = False
    """Whether /is_sleeping, /sleep and /wake_up exist (VLLM_SERVER_DEV_MODE)."""
    version: str = "0.32.0"
    """What `/version` says; it decides which spelling of structured outputs is understood."""
    keepalive_s: float = 5.0
    """Idle connections are closed after this long (seen on vLLM 0.32.0)."""
    marker: str = r"row-\d+"
    """A regular expression: its first match in a body names the request in the log."""
    log_max: int = 100_000
    """How many of the latest requests the log keeps."""
    body_bytes_max: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("a fake server serves at least one model")
        if self.engine is not None and self.engine.kv_tokens < self.max_model_len:
            raise ValueError(
                "the KV cache must hold one sequence of max_model_len, as vLLM checks at its start"
            )
