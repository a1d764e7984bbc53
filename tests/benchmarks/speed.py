"""How many rows a second, beside a bare aiohttp client and the openai SDK."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench import CONCURRENCY, HEADING, Bench, Result, figures, summary
from children import Taken
from ingest import measure_ingest

SDK_SHARE = 0.05
"""The SDK needs some milliseconds a row: it gets fewer."""
INGEST_ROWS = 400_000
INGEST_ROWS_PER_S_MIN = 100_000


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of each, one right after the other: what else the machine does meets both."""

    pump: Taken
    dispatcher: Taken

    @property
    def speed_ratio(self) -> float:
        """The dispatcher's rows a second by the bare client's."""
        return self.dispatcher.rows_per_s / self.pump.rows_per_s

    @property
    def cpu_ratio(self) -> float:
        """The bare client's processor time a row by the dispatcher's: the speed, were nothing else here."""
        return self.pump.cpu_us_per_row / self.dispatcher.cpu_us_per_row


def compare_speed(bench: Bench, rows: int, repeat: int, ratio_min: float | None) -> Result:
    """Run each pair in turn, the SDK once, and ingest alone. None for `ratio_min` asks for nothing."""
    pairs = [Pair(bench.contender("pump.py", rows), bench.dispatcher(rows)) for _ in range(repeat)]
    sdk = bench.contender("sdk.py", max(CONCURRENCY, int(rows * SDK_SHARE)))
    runs = {
        "bare aiohttp": [pair.pump for pair in pairs],
        "dispatcher run": [pair.dispatcher for pair in pairs],
        "openai.AsyncOpenAI": [sdk],
    }
    speed, cpu = [pair.speed_ratio for pair in pairs], [pair.cpu_ratio for pair in pairs]
    ingest = measure_ingest(INGEST_ROWS).rows_per_s
    lines = [
        HEADING,
        *(summary(name, taken) for name, taken in runs.items()),
        f"dispatcher by bare aiohttp, pair by pair: rows/s {_ratios(speed)}; processor time {_ratios(cpu)}",
        f"ingest alone: {ingest:,.0f} lines/s",
    ]
    told = {name: [figures(each) for each in taken] for name, taken in runs.items()}
    told |= {"speed_ratios": speed, "cpu_ratios": cpu, "ingest_lines_per_s": ingest}
    return Result(told, lines, [] if ratio_min is None else _misses(median(speed), ratio_min, ingest))


def _ratios(ratios: Sequence[float]) -> str:
    return f"{' '.join(f'{ratio:.2f}' for ratio in ratios)} (median {median(ratios):.2f})"


def _misses(ratio: float, ratio_min: float, ingest: float) -> list[str]:
    misses = []
    if ratio < ratio_min:
        misses.append(f"{ratio:.2f} of the bare client's rows/s; at least {ratio_min} is asked for")
    if ingest < INGEST_ROWS_PER_S_MIN:
        misses.append(f"ingest of {ingest:,.0f} lines/s; at least {INGEST_ROWS_PER_S_MIN:,} are asked for")
    return misses
