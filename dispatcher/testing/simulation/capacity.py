"""What an engine can do at its best: the pace of a full batch."""

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation.rows import JobPlan


def batch(engine: EngineSettings, job: JobPlan) -> float:
    """How many of the job's rows run at once when the engine is full: its slots, or what its cache holds.

    A running row holds its prompt and, on average, half of its output.
    """
    tokens = job.prompt.mean + job.output.mean / 2
    return max(1.0, min(engine.max_sequences, engine.kv_tokens * (1 - engine.kv_reserve) / tokens))


def tokens_per_s(engine: EngineSettings, job: JobPlan) -> float:
    """Output tokens a second with a full batch, or as fast as prompts can be read."""
    full = batch(engine, job)
    decoding = full / engine.step_s(max(1, round(full)))
    reading = engine.prefill_tokens_per_s / job.prompt.mean * job.output.mean
    return min(decoding, reading)


def rows_per_s(engine: EngineSettings, job: JobPlan) -> float:
    """Rows a second at that pace."""
    return tokens_per_s(engine, job) / job.output.mean
