"""What a request for text asks for, held against the ranges that vLLM allows (its sampling_params.py)."""

from dispatcher.testing import refusals
from dispatcher.testing.bodies import GenerationBody

CHOICES_MAX = 16_384
"""vLLM's VLLM_MAX_N_SEQUENCES."""
LOGPROBS_MAX = 20
"""vLLM's default of `--max-logprobs`."""


def check_ranges(body: GenerationBody) -> None:
    """Raise RefusalError for a parameter out of its range, in vLLM's words."""
    if body.temperature is not None and body.temperature < 0:
        raise refusals.out_of_range(
            f"temperature must be non-negative, got {body.temperature}.", "temperature", body.temperature
        )
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise refusals.out_of_range(f"top_p must be in (0, 1], got {body.top_p}.", "top_p", body.top_p)
    if not 1 <= body.n <= CHOICES_MAX:
        bound = "at least 1" if body.n < 1 else f"at most {CHOICES_MAX}"
        raise refusals.refusal(f"n must be {bound}, got {body.n}.")
    _check_logprobs(max(int(body.logprobs or 0), body.top_logprobs or 0))


def _check_logprobs(wanted: int) -> None:
    if wanted > LOGPROBS_MAX:
        raise refusals.out_of_range(
            f"Requested sample logprobs of {wanted}, which is greater than max allowed: {LOGPROBS_MAX}",
            "logprobs",
            wanted,
        )


def asked_limit(body: GenerationBody, default: int | None) -> tuple[str, int | None]:
    """The limit on the answer's tokens with the field that sets it; None is as many as there is room for."""
    limits = {
        "max_completion_tokens": body.max_completion_tokens,
        "max_tokens": body.max_tokens,
        "max_output_tokens": body.max_output_tokens,
    }
    return next(
        ((name, limit) for name, limit in limits.items() if limit is not None), ("max_tokens", default)
    )
