"""A server's `/metrics` page, read for the few figures that steer load: one pass, no general parser."""

import math
import re
from collections.abc import Sequence
from typing import Final

from dispatcher.model import Telemetry


def read_telemetry(page: str) -> Telemetry:
    """Read a page of Prometheus' text format, with vLLM's names (its v1/metrics/loggers.py).

    Figures are added up over engines and models, as one port can serve several; the KV cache's usage (0 to 1)
    is their mean. A figure that the page does not have is None.
    """
    samples: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in _SAMPLE.findall(page):
        if (number := _number(value)) is not None:
            samples.setdefault(name, []).append((labels, number))
    figures = {name: [number for _, number in found] for name, found in samples.items()}
    return Telemetry(
        running=_sum(figures.get("vllm:num_requests_running")),
        waiting=_sum(figures.get("vllm:num_requests_waiting")),
        kv_usage=_mean(figures.get("vllm:kv_cache_usage_perc") or figures.get("vllm:gpu_cache_usage_perc")),
        preemptions_total=_sum(figures.get("vllm:num_preemptions_total")),
        generation_tokens_total=_sum(figures.get("vllm:generation_tokens_total")),
        prompt_tokens_total=_sum(figures.get("vllm:prompt_tokens_total")),
        started_at=max(figures.get("process_start_time_seconds", ()), default=None),
        kv_max_concurrency=_sum(_concurrencies(samples.get("vllm:cache_config_info", ()))),
    )


_SAMPLE: Final = re.compile(
    r"^(vllm:num_requests_running"
    r"|vllm:num_requests_waiting"
    r"|vllm:kv_cache_usage_perc"
    r"|vllm:gpu_cache_usage_perc"  # the name until vLLM's pull request 18354
    r"|vllm:num_preemptions_total"
    r"|vllm:generation_tokens_total"
    r"|vllm:prompt_tokens_total"
    r"|vllm:cache_config_info"
    r"|process_start_time_seconds"
    r")(?:\{(.*)\})? +(\S+)",  # a time stamp may follow
    re.MULTILINE,
)
_CONCURRENCY: Final = re.compile(r'(?:^|,)kv_cache_max_concurrency="([^"]*)"')


def _concurrencies(infos: Sequence[tuple[str, float]]) -> list[float]:
    """How many requests of full length each engine's KV cache holds: a label, in newer vLLMs."""
    found = (_CONCURRENCY.search(labels) for labels, _ in infos)
    numbers = (_number(match[1]) for match in found if match)
    return [number for number in numbers if number is not None]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _sum(figures: Sequence[float] | None) -> float | None:
    return sum(figures) if figures else None


def _mean(figures: Sequence[float] | None) -> float | None:
    return sum(figures) / len(figures) if figures else None
