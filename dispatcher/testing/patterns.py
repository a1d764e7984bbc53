"""Texts that match a regular expression, for the fake's structured outputs.

The usual parts are understood: literals, escapes, classes, groups, alternatives and repetition. Anything else
(look-around, back-references) is refused, never answered wrongly: every text is checked against the pattern.
"""

import re
import string
from random import Random

_CLASSES = {"d": string.digits, "w": string.ascii_lowercase, "s": " "}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_REPEAT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_PRINTABLE = "".join(map(chr, range(32, 127)))
_EXTRA_REPEATS_MAX = 4  # of what may be repeated for ever
_REPEATS_MAX = 10_000
_LENGTH_MAX = 100_000


class UnsupportedPatternError(ValueError):
    """The pattern is not a regular expression, or has a part that cannot be sampled."""


def sample_pattern(pattern: str, random: Random) -> str:
    """A text that matches the whole pattern. Raises UnsupportedPatternError."""
    try:
        compiled = re.compile(pattern)
    except re.error as exc:
        raise UnsupportedPatternError(str(exc)) from exc
    sampler = _Sampler(pattern, random)
    text = sampler.alternatives()
    if sampler.rest or not compiled.fullmatch(text):
        raise UnsupportedPatternError(f"cannot sample the pattern {pattern!r}")
    return text


class _Sampler:
    """A recursive descent over the pattern that writes instead of reading."""

    def __init__(self, pattern: str, random: Random) -> None:
        self.rest = pattern
        self._random = random

    def alternatives(self) -> str:
        options = [self._sequence()]
        while self.rest.startswith("|"):
            self._take()
            options.append(self._sequence())
        return self._random.choice(options)

    def _sequence(self) -> str:
        parts = []
        while self.rest and self.rest[0] not in "|)":
            parts.append(self._repeated())
        return "".join(parts)

    def _repeated(self) -> str:
        start = self.rest
        text = self._atom()
        atom = start[: len(start) - len(self.rest)]
        times = self._times()
        if times is None:
            return text
        if times * len(text) > _LENGTH_MAX:
            raise UnsupportedPatternError(f"a repetition longer than {_LENGTH_MAX} characters")
        return "".join(_Sampler(atom, self._random).alternatives() for _ in range(times))

    def _times(self) -> int | None:
        """How often the atom before is to be repeated; None where nothing says so."""
        bounds = self._bounds()
        if bounds is None:
            return None
        if self.rest.startswith("?"):
            self._take()  # a lazy repetition matches the same texts
        low, high = bounds
        return self._random.randint(low, min(high, low + _EXTRA_REPEATS_MAX, _REPEATS_MAX))

    def _bounds(self) -> tuple[int, int] | None:
        match self.rest[:1]:
            case "*":
                self._take()
                return 0, _REPEATS_MAX
            case "+":
                self._take()
                return 1, _REPEATS_MAX
            case "?":
                self._take()
                return 0, 1
            case _:
                return self._counted_bounds()

    def _counted_bounds(self) -> tuple[int, int] | None:
        """The bounds of `{2}`, `{2,}` or `{2,3}`."""
        found = _REPEAT.match(self.rest)
        if found is None:
            return None
        self.rest = self.rest[found.end() :]
        low = min(int(found[1]), _REPEATS_MAX)
        if found[2] is None:
            return low, low
        return low, int(found[3]) if found[3] else _REPEATS_MAX

    def _atom(self) -> str:
        match character := self._take():
            case "(":
                return self._group()
            case "[":
                return self._random.choice(self._character_class())
            case "\\":
                return self._random.choice(self._escape())
            case ".":
                return self._random.choice(string.ascii_lowercase)
            case "^" | "$":
                return ""
            case _:
                return character

    def _group(self) -> str:
        if self.rest.startswith("?:"):
            self.rest = self.rest[2:]
        elif self.rest.startswith("?"):
            raise UnsupportedPatternError("groups with options and look-around cannot be sampled")
        text = self.alternatives()
        self._take()  # the closing parenthesis: the pattern compiled, so it is there
        return text

    def _character_class(self) -> str:
        """Every character that the class allows, among the printable ones where it is negated."""
        negated = self.rest.startswith("^")
        if negated:
            self._take()
        allowed = ""
        while not (allowed and self.rest.startswith("]")):
            allowed += self._class_member()
        self._take()
        if not negated:
            return allowed
        others = "".join(character for character in _PRINTABLE if character not in allowed)
        if not others:
            raise UnsupportedPatternError("a class that allows no printable character")
        return others

    def _class_member(self) -> str:
        first = self._take()
        members = self._escape() if first == "\\" else first
        if len(members) != 1 or self.rest[:1] != "-" or self.rest[1:2] in {"]", ""}:
            return members
        self._take()
        last = self._take()
        end = self._escape() if last == "\\" else last
        return "".join(map(chr, range(ord(members), min(ord(end), ord(members) + 255) + 1)))

    def _escape(self) -> str:
        """The characters that an escape stands for."""
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character.isalnum():
            raise UnsupportedPatternError(f"the escape \\{character} cannot be sampled")
        return character

    def _take(self) -> str:
        character, self.rest = self.rest[:1], self.rest[1:]
        return character
