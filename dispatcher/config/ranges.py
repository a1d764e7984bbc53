"""Host ranges as Slurm writes them: `gpu[01-04,07]` is gpu01, gpu02, gpu03, gpu04 and gpu07.

The notation is that of Slurm's host lists (https://slurm.schedmd.com/scontrol.html, `show hostnames`):
several brackets multiply, and a range is as wide as its first number, leading zeros included.
"""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

_BRACKET = re.compile(r"\[([^\[\]:]*)\]")  # with a colon in it, it is an IPv6 address
_RUN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_ranges(text: str, count_max: int) -> list[str]:
    """Every text that the brackets stand for, in order: the text alone where it has none.

    Raises:
        ValueError: A bracket holds something else than ranges, or there would be more than `count_max` texts.
    """
    pieces = _BRACKET.split(text)
    literals, brackets = pieces[::2], [_runs(inner) for inner in pieces[1::2]]
    if math.prod(sum(len(run.numbers) for run in runs) for runs in brackets) > count_max:
        raise ValueError(f"stands for more than {count_max} servers")
    choices = [[name for run in runs for name in run.names()] for runs in brackets]
    return [_woven(literals, chosen) for chosen in itertools.product(*choices)]


def _woven(literals: Sequence[str], chosen: Sequence[str]) -> str:
    return "".join(itertools.chain.from_iterable(itertools.zip_longest(literals, chosen, fillvalue="")))


@dataclass(frozen=True, slots=True)
class _Run:
    numbers: range
    width: int

    def names(self) -> list[str]:
        return [f"{number:0{self.width}}" for number in self.numbers]


def _runs(inner: str) -> list[_Run]:
    return [_run(part.strip()) for part in inner.split(",")]


def _run(text: str) -> _Run:
    match = _RUN.fullmatch(text)
    if match is None:
        raise ValueError(f"has [{text}] where a range such as [01-16] is expected")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise ValueError(f"has a range that runs backwards: [{text}]")
    return _Run(range(int(first), int(last) + 1), width=len(first))
