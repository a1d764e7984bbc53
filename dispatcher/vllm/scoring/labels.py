"""The labels to choose from. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dispatcher.errors import ConfigError, Fault

INCOMPLETE: Final = "\ufffd"
"""What a detokeniser writes for bytes that are not a whole character yet."""
_ASCII_END: Final = "\x80"


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Labels in the user's order, and what each means where that was said."""

    texts: tuple[str, ...]
    descriptions: Mapping[str, str]

    def starting_with(self, text: str, among: Iterable[str]) -> tuple[str, ...]:
        """Those of `among` that a text can still become.

        A text that ends inside a character can become every label whose next character has several bytes.
        """
        head = text.rstrip(INCOMPLETE)
        if head == text:
            return tuple(label for label in among if label.startswith(text))
        return tuple(
            label for label in among if label.startswith(head) and label[len(head) :][:1] >= _ASCII_END
        )


def label_set(labels: Sequence[str] | Mapping[str, str]) -> LabelSet:
    """The labels, checked. Raises ConfigError with every fault: none at all, blank, repeated, not UTF-8."""
    if isinstance(labels, str):
        raise ConfigError((Fault("labels", "must be a list of texts, not one text"),))
    texts = tuple(labels)
    faults = [] if texts else [Fault("labels", "must hold at least one")]
    for position, text in enumerate(texts):
        if (why := _fault_of(text, texts[:position])) is not None:
            faults.append(Fault(f"labels[{position}]", why))
    if faults:
        raise ConfigError(tuple(faults))
    return LabelSet(texts, dict(labels) if isinstance(labels, Mapping) else {})


def instruction(labels: LabelSet) -> str:
    """What a model is told of the labels."""
    lines = [
        f"- {text}: {labels.descriptions[text]}" if labels.descriptions.get(text) else f"- {text}"
        for text in labels.texts
    ]
    return "\n".join(
        [
            "Classify the text. The labels are:",
            *lines,
            "Answer with one label, exactly as it is written here.",
        ]
    )


def conversation_for(
    given: str | Sequence[Mapping[str, object]], labels: LabelSet
) -> list[Mapping[str, object]]:
    """The messages that ask for a label.

    A text is asked about in one user message, below the instruction (not every template has a system role).
    Messages are the user's own and stay as they are; only descriptions are told, in a system message first.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": f"{instruction(labels)}\n\nText:\n{given}"}]
    if not labels.descriptions:
        return list(given)
    return [{"role": "system", "content": instruction(labels)}, *given]


def _fault_of(text: object, before: Sequence[str]) -> str | None:
    if not isinstance(text, str) or not text.strip():
        return "must be a text that is not blank"
    if text in before:
        return f"repeats {text!r}"
    if INCOMPLETE in text or not _is_utf8(text):
        return "must be whole characters: U+FFFD and lone surrogates cannot be told from broken bytes"
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
