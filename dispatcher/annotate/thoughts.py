"""A model's thinking told from its answer, where the server has left both in one text.

A server with a reasoning parser keeps them apart (`message.reasoning`; `reasoning_content` before vLLM 0.16
or so). Without one, the text has the marks that the model was trained to write. The table has those that
vLLM 0.32.0 knows (its `vllm/reasoning` and `vllm/parser`), with the names of its parsers.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Marks:
    """How one family of models writes that it thinks."""

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    wraps: tuple[tuple[str, str], ...] = ()
    """What the answer behind the thoughts may stand between. The second mark may be missing."""
    label: str = ""
    """A line that the thoughts begin with and that is none of them."""
    words: bool = False
    """The marks are plain words, which count only where the text begins with one."""


FAMILIES: Final = (
    # deepseek_r1, deepseek_v3, deepseek_v4, glm45, kimi_k2, mimo, minimax_m2, mistral (before v13),
    # nemotron_v3, olmo3, qwen3, step3; hunyuan_a13b has <answer>, and ernie45 <response>, around what follows
    Marks(("<think>",), ("</think>",), (("<answer>", "</answer>"), ("<response>", "</response>"))),
    # mistral
    Marks(("[THINK]",), ("[/THINK]",)),
    # seed_oss
    Marks(("<seed:think>",), ("</seed:think>",)),
    # cohere_command3, cohere_command4
    Marks(
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>")),
    ),
    # gemma4
    Marks(("<|channel>",), ("<channel|>",), (("", "<turn|>"),), label="thought"),
    # minimax_m3
    Marks(("<mm:think>",), ("</mm:think>",)),
    # k2_horizon
    Marks(
        ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    ),
    # kimi_k3
    Marks(("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",)),
    # plamo3
    Marks(("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",)),
    # openai_gptoss: the channels of OpenAI's "harmony" format
    Marks(
        ("<|channel|>analysis<|message|>",),
        ("<|channel|>final<|message|>",),
        (("", "<|return|>"), ("", "<|end|>")),
    ),
    # granite
    Marks(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        words=True,
    ),
)
_BEGINS: Final = tuple(mark for marks in FAMILIES for mark in marks.begins)
_IN_ENDS: Final = ("</", "<|", "[/THINK]", "<channel|>")
"""One of these is in every end that counts without its beginning: most texts have none."""
_HARMONY_LEFTOVER: Final = "<|end|><|start|>assistant"
"""What stands between harmony's two channels."""


def split_thoughts(text: str) -> tuple[str, str | None]:
    """The answer and the thoughts before it; None where there are none.

    Thoughts that do not end leave no answer: `""`. An end without a beginning ends thoughts all the same:
    many chat templates write the beginning into the prompt (those of deepseek_r1 and minimax_m2, say).
    """
    start = text.lstrip()
    if not start.startswith(_BEGINS) and not any(part in text for part in _IN_ENDS):
        return text, None
    for marks in FAMILIES:
        begin = next((mark for mark in marks.begins if start.startswith(mark)), None)
        if begin is not None:
            return _split(start[len(begin) :], marks) or ("", _tidy(start[len(begin) :], marks))
        if not marks.words and not any(mark in text for mark in marks.begins):
            found = _split(text, marks)
            if found is not None:
                return found
    return text, None


def _split(text: str, marks: Marks) -> tuple[str, str] | None:
    """What stands before the first end, and behind it."""
    places = [(text.find(mark), mark) for mark in marks.ends if mark in text]
    if not places:
        return None
    place, mark = min(places)
    return _unwrapped(text[place + len(mark) :].strip(), marks), _tidy(text[:place], marks)


def _tidy(thoughts: str, marks: Marks) -> str:
    thoughts = thoughts.strip().removesuffix(_HARMONY_LEFTOVER).strip()
    return thoughts.removeprefix(f"{marks.label}\n").strip() if marks.label else thoughts


def _unwrapped(answer: str, marks: Marks) -> str:
    for before, after in marks.wraps:
        if answer.startswith(before) and (before or answer.endswith(after)):
            answer = answer.removeprefix(before).removesuffix(after).strip()
    return answer
