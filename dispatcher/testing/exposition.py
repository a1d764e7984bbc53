"""The text of `/metrics`, with the names and labels that vLLM 0.32.0 shows."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dispatcher.testing.engine import EngineLoad
from dispatcher.testing.settings import FakeServerSettings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
_BLOCK_TOKENS = 16
_INSTANT_KV_TOKENS = 400_000


@dataclass(slots=True)
class Counters:
    """What one server process has done so far."""

    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    """Finished requests by reason."""
    rejections: int = 0
    """Requests that were answered with 429 or 503."""
    prompt_tokens: int = 0
    generation_tokens: int = 0


def exposition(
    settings: FakeServerSettings, load: EngineLoad, counters: Counters, started_at: float, *, sleeping: bool
) -> str:
    """All series of one server, one engine."""
    write = _Writer(settings.models[0])
    write("vllm:num_requests_running", "gauge", load.running)
    write("vllm:num_requests_waiting", "gauge", load.waiting)
    reasons = {"capacity": load.waiting, "deferred": 0}
    write.each("vllm:num_requests_waiting_by_reason", "gauge", "reason", reasons)
    write("vllm:kv_cache_usage_perc", "gauge", load.kv_usage)
    write("vllm:num_preemptions_total", "counter", load.preemptions)
    write("vllm:prompt_tokens_total", "counter", load.prompt_tokens)
    write("vllm:generation_tokens_total", "counter", load.generation_tokens)
    write.each("vllm:request_success_total", "counter", "finished_reason", counters.finished)
    write.rejections(counters.rejections)
    asleep = {"awake": int(not sleeping), "weights_offloaded": int(sleeping), "discard_all": 0}
    write.each("vllm:engine_sleep_state", "gauge", "sleep_state", asleep)
    write.histogram("vllm:iteration_tokens_total", load.prompt_tokens + load.generation_tokens, load.steps)
    write.cache(settings)
    write.process(started_at)
    return write.text()


class _Writer:
    """Writes series that all carry the model's and the engine's labels."""

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"')
        self._model = f'model_name="{escaped}"'
        self._labels = f'engine="0",{self._model}'
        self._lines: list[str] = []

    def __call__(self, name: str, kind: str, value: float) -> None:
        self._family(name, kind, [f"{name}{{{self._labels}}} {value}"])

    def each(self, name: str, kind: str, label: str, values: dict[str, int]) -> None:
        series = [f'{name}{{{self._labels},{label}="{key}"}} {value}' for key, value in values.items()]
        self._family(name, kind, series)

    def histogram(self, name: str, total: float, count: int) -> None:
        bucket = f'{name}_bucket{{{self._labels},le="+Inf"}} {count}'
        sums = [f"{name}_sum{{{self._labels}}} {total}", f"{name}_count{{{self._labels}}} {count}"]
        self._family(name, "histogram", [bucket, *sums])

    def rejections(self, count: int) -> None:
        """Requests that its queue's limits kept out: counted before any engine, so without its label."""
        name = "vllm:admission_rejections_total"
        counts = {"max_num_queued_reqs": count, "max_num_queued_tokens": 0}
        series = [f'{name}{{{self._model},reason="{key}"}} {value}' for key, value in counts.items()]
        self._family(name, "counter", series)

    def cache(self, settings: FakeServerSettings) -> None:
        held = settings.engine.kv_tokens if settings.engine else _INSTANT_KV_TOKENS
        labels = (
            f'block_size="{_BLOCK_TOKENS}",num_gpu_blocks="{held // _BLOCK_TOKENS}",'
            f'kv_cache_size_tokens="{held}",kv_cache_max_concurrency="{held / settings.max_model_len:.2f}"'
        )
        self._family("vllm:cache_config_info", "gauge", [f'vllm:cache_config_info{{{labels},engine="0"}} 1'])

    def process(self, started_at: float) -> None:
        name = "process_start_time_seconds"
        self._family(name, "gauge", [f"{name} {started_at!r}"])

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _family(self, name: str, kind: str, series: Iterable[str]) -> None:
        self._lines += [f"# TYPE {name} {kind}", *series]
