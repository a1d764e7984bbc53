"""The texts of token paths, asked once. Pure."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final

from dispatcher.vllm.scoring.masked import Path
from dispatcher.vllm.scoring.records import Classification
from dispatcher.vllm.scoring.steps import Answer, Ask, Post
from dispatcher.vllm.scoring.wire import DETOKENIZE, TOKENIZE, read_text, read_tokens

KEPT_MAX: Final = 65_536
"""Paths kept: a set of labels has some hundreds."""

_ANCHOR: Final = "a"
"""What stands before a path when its text is asked for: many tokenisers drop a blank at a text's beginning,
so that " good" alone reads as "good". A letter is no byte token, which bytes behind it could be joined to."""
UNREADABLE: Final = "\0"
"""What the text of a path begins with that changes what is before it. It fits no label."""


class Spellings:
    """What is known of one model's tokens. Labels are the same for many texts, and so are their tokens."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept: dict[Path, str] = {}
        self._kept_max = kept_max
        self._anchor: Path | None = None
        self._anchor_text: str | None = None

    def of(
        self, paths: Iterable[Path], so_far: Callable[[], Classification] | None
    ) -> Generator[Ask, Sequence[Answer], dict[Path, str]]:
        """The text of each path behind another text: yields what is to be posted, and is sent answers.

        Several may be under way at once; what one learns the others need not ask. Raises ScoringError.
        """
        wanted = list(paths)
        found: dict[Path, str] = {}
        while True:
            found |= {path: self._kept[path] for path in wanted if path in self._kept}
            posts = self._posts([path for path in wanted if path not in found])
            if not posts:
                return found
            for post, answer in (yield Ask(posts, so_far)):
                self._learn(post, answer)

    def _posts(self, missing: Sequence[Path]) -> list[Post]:
        if not missing:
            return []
        if self._anchor is None:
            return [Post(TOKENIZE, {"prompt": _ANCHOR, "add_special_tokens": False})]
        if self._anchor_text is None:
            return [Post(DETOKENIZE, {"tokens": [*self._anchor]})]
        return [Post(DETOKENIZE, {"tokens": [*self._anchor, *path]}) for path in missing]

    def _learn(self, post: Post, answer: Mapping[str, Any]) -> None:
        if post.path == TOKENIZE:
            self._anchor = read_tokens(answer)
            return
        tokens, text = tuple(post.body["tokens"]), read_text(answer)
        if tokens == self._anchor:
            self._anchor_text = text
        elif self._anchor is not None and self._anchor_text is not None:
            self._keep(tokens[len(self._anchor) :], text, self._anchor_text)

    def _keep(self, path: Path, whole: str, before: str) -> None:
        text = whole[len(before) :] if whole.startswith(before) else f"{UNREADABLE}{whole}"
        if len(self._kept) >= self._kept_max:
            self._kept.clear()
        self._kept[path] = text
