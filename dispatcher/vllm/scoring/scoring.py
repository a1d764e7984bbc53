"""A completion's log-probability, token by token."""

from dispatcher.errors import InputError
from dispatcher.vllm.scoring.masked import Path
from dispatcher.vllm.scoring.prompts import Prompt, completion_after, refuse_images, tokenize
from dispatcher.vllm.scoring.records import Boundary, Score, ScoredToken
from dispatcher.vllm.scoring.wire import CHAT, COMPLETIONS, Wire, echo_body, read_echo, read_prompt_logprobs


async def score(wire: Wire, prompt: Prompt, completion: str) -> Score:
    """The log-probability of a completion after a prompt: that of generating its tokens after the prompt's.

    Messages are scored through the model's chat template (`prompt_logprobs` with `continue_final_message`), a
    plain text by its echo. Where the boundary is inside a token, or the template writes an answer otherwise
    than it asks for one, the completion's own tokens are scored after the prompt's: see `Boundary`. The end
    of the answer is not scored. Two requests for messages, four for a text, about eight in the other cases.

    Raises InputError for an empty completion or prompt, and for images where token ids must be sent;
    ScoringError where the server cannot score; and what `wire` raises.
    """
    if not completion:
        raise InputError("an empty completion has no probability to score")
    if isinstance(prompt.given, list | tuple) and not prompt.given:
        raise InputError("messages must hold at least one")
    before = await tokenize(wire, prompt.asked())
    if not before:
        raise InputError("an empty prompt: the first token of all has no probability")
    if not isinstance(prompt.given, str):
        tokens = await _through_template(wire, prompt, before, completion)
        if tokens is not None:
            return Score(tokens, Boundary.TOKEN)
        refuse_images(prompt, "a completion that does not begin where the prompt's tokens end")
    found = await completion_after(wire, prompt, before, completion)
    whole = before + found.ids
    answer = await wire.post(COMPLETIONS, echo_body([whole]))
    return Score(read_echo(answer, [whole], len(before))[0], found.boundary)


async def _through_template(
    wire: Wire, prompt: Prompt, before: Path, completion: str
) -> tuple[ScoredToken, ...] | None:
    """The completion's tokens, if they are what follows the prompt's in the messages continued."""
    scoring = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    answer = await wire.post(CHAT, {**prompt.continued(completion), **scoring})
    ids, tokens = read_prompt_logprobs(answer, before)
    rest = tuple(token for token in tokens[len(before) :] if token is not None)
    spelled = "".join(token.text for token in rest)
    return rest if ids[: len(before)] == before and spelled == completion else None
