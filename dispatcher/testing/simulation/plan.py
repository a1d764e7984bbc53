"""What a user rehearses before renting GPUs: a fleet and a job, from a YAML file."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dispatcher.config.document import parse_yaml
from dispatcher.config.faults import dotted, explain
from dispatcher.errors import ConfigError, Fault, StorageError
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation.rows import JobPlan, Lengths, RowKind

SERVERS_MAX = 10_000
_DAY = 86_400


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Seconds = Annotated[float, Field(gt=0, le=30 * _DAY)]
Count = Annotated[int, Field(ge=1)]
Pace = Annotated[float, Field(ge=1, le=1e12)]
"""Tokens a second. At less than one, a rehearsal takes longer than anyone waits."""


def _mean_alone(value: object) -> object:
    """A plain number stands for the mean."""
    return {"mean": value} if isinstance(value, int | float | str) else value


class TokenLengths(_Part):
    """Token counts of prompts or outputs: log-normal. A plain number stands for the mean."""

    mean: Annotated[float, Field(gt=0, le=1_000_000)]
    spread: Annotated[float, Field(ge=0, le=3)] = 0.5
    """Standard deviation of the logarithm: 0 makes all equal, 1.2 has a long tail."""
    most: Annotated[int, Field(ge=1, le=1_000_000)] = 8192

    def lengths(self) -> Lengths:
        """The same for the simulator."""
        return Lengths(self.mean, self.spread, self.most)


class ServerGroup(_Part):
    """Servers of one kind."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = "servers"
    count: Annotated[int, Field(ge=1, le=SERVERS_MAX)] = 1
    max_sequences: Annotated[int, Field(ge=1, le=65_536)] = 256
    """vLLM's `--max-num-seqs`."""
    tokens_per_s: Pace = 7_200.0
    """Output tokens a second with `max_sequences` running."""
    tokens_per_s_alone: Pace = 100.0
    """Output tokens a second of a single request."""
    prefill_tokens_per_s: Pace = 20_000.0
    kv_tokens: Annotated[int, Field(ge=1024)] = 400_000
    """Tokens that the KV cache holds; vLLM logs it at its start."""
    starts_after_s: Annotated[float, Field(ge=0, le=30 * _DAY)] = 0.0
    """When the first of them is ready."""
    starts_over_s: Annotated[float, Field(ge=0, le=30 * _DAY)] = 0.0
    """Over what time after that the others become ready, evenly."""
    dies_every_s: Seconds | None = None
    """How long each lives, on average: half to one and a half times as long. None: for ever."""
    back_after_s: Seconds = 180.0
    limit: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    metrics: bool = True
    """Whether they have `/metrics`, as vLLM has; without it, limits are learned from answers a second."""
    black_hole: bool = False
    """Whether these addresses never answer."""

    @model_validator(mode="after")
    def _is_faster_together(self) -> "ServerGroup":
        if self.tokens_per_s < self.tokens_per_s_alone:
            raise ValueError("tokens_per_s, of a full batch, must be at least tokens_per_s_alone")
        if self.tokens_per_s > self.tokens_per_s_alone * self.max_sequences:
            raise ValueError("tokens_per_s cannot be more than max_sequences times tokens_per_s_alone")
        return self

    def engine(self) -> EngineSettings:
        """The engine with these figures."""
        step_s = 1 / self.tokens_per_s_alone
        full_step_s = self.max_sequences / self.tokens_per_s
        return EngineSettings(
            max_sequences=self.max_sequences,
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            decode_step_s=step_s,
            decode_step_growth_s=max(0.0, full_step_s - step_s) / max(1, self.max_sequences - 1),
            kv_tokens=self.kv_tokens,
        )


class JobShape(_Part):
    """The rows."""

    rows: Annotated[int, Field(ge=1, le=100_000_000)]
    prompt_tokens: Annotated[TokenLengths, BeforeValidator(_mean_alone)] = TokenLengths(mean=300)
    output_tokens: Annotated[TokenLengths, BeforeValidator(_mean_alone)] = TokenLengths(mean=200)
    poison_rows: Annotated[int, Field(ge=0, le=1000)] = 0
    """Rows, evenly spread, that the engine of any server dies of."""


class Plan(_Part):
    """A fleet and a job."""

    fleet: Annotated[tuple[ServerGroup, ...], Field(min_length=1, max_length=100)]
    job: JobShape
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Dispatchers that share the job, started together."""

    @model_validator(mode="after")
    def _fits(self) -> "Plan":
        if repeated := [
            name for name, uses in Counter(group.name for group in self.fleet).items() if uses > 1
        ]:
            raise ValueError(
                f"several groups of the fleet are called {repeated[0]}: give each a name of its own"
            )
        if sum(group.count for group in self.fleet) > SERVERS_MAX:
            raise ValueError(f"at most {SERVERS_MAX} servers can be simulated")
        longest = self.job.prompt_tokens.most + self.job.output_tokens.most
        cache = min(group.kv_tokens for group in self.fleet)
        if longest > cache:
            raise ValueError(
                f"the longest row has up to {longest} tokens, and a KV cache holds {cache}: lower `most`"
            )
        if all(group.black_hole for group in self.fleet):
            raise ValueError("some servers must answer")
        return self

    def job_plan(self) -> JobPlan:
        """The job for the simulator."""
        job = self.job
        poison = [int((number + 0.5) * job.rows / job.poison_rows) for number in range(job.poison_rows)]
        odd = dict.fromkeys(poison, RowKind.POISON)
        return JobPlan(job.rows, job.prompt_tokens.lengths(), job.output_tokens.lengths(), odd=odd)


def read_plan(path: Path) -> Plan:
    """Read a plan. Raises ConfigError with every fault, StorageError where the file cannot be read."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    document = parse_yaml(text, str(path))
    if document.faults:
        raise ConfigError(document.faults)
    try:
        return Plan.model_validate(document.content)
    except ValidationError as error:
        raise ConfigError(
            tuple(
                Fault(f"{path}: {dotted(place) or 'the plan'}", message)
                for place, message in explain(error, lambda _place: ())
            )
        ) from error
