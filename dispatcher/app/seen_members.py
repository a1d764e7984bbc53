"""The members that several services share, as one of them saw them last. Plain data: no I/O."""

from collections.abc import Iterable

from dispatcher.queue.members import MemberKind, MemberRecord

LOOK_S_MAX = 5.0
"""Between two looks without news: some may be missed, and registrations end without any."""
LOOKS = 6
"""In the time that a registration lasts."""
PAUSE_S = 0.2
"""After each look: a fleet that registers all at once is news a thousand times."""


class Seen:
    """What was seen, and what that means for registrations.

    While nobody could look, because the database was away or this process stood still, nobody could renew a
    registration either, or not here: whoever is missing after that is given one more time to.

    Args:
        ttl_s: How long a registration lasts.
        now: Monotonic seconds, as all times here.
    """

    def __init__(self, ttl_s: float, now: float) -> None:
        self.look_s = min(LOOK_S_MAX, ttl_s / LOOKS)
        """Between two looks, PAUSE_S aside."""
        self._ttl_s = ttl_s
        self._records: dict[tuple[MemberKind, str], MemberRecord] = {}
        self._left: set[str] = set()
        self._looked_at = now
        self._patient_until = now

    def of(self, kind: MemberKind) -> list[MemberRecord]:
        """All of a kind."""
        return [record for record in self._records.values() if record.kind is kind]

    def urls(self, kind: MemberKind) -> set[str]:
        """The addresses of all of a kind."""
        return {url for of_kind, url in self._records if of_kind is kind}

    def knows(self, record: MemberRecord) -> bool:
        """Whether it is there, and the same."""
        return self._records.get((record.kind, record.url)) == record

    def saw(self, records: Iterable[MemberRecord], now: float) -> bool:
        """These are the members now; whether anything has changed."""
        if now - self._looked_at > 2 * (self.look_s + PAUSE_S):
            self._patient_until = now + self._ttl_s
        self._looked_at = now
        before, self._records = self._records, {(each.kind, each.url): each for each in records}
        if now < self._patient_until:
            spared = {
                (kind, url): each
                for (kind, url), each in before.items()
                if kind is MemberKind.REGISTERED and url not in self._left
            }
            self._records = spared | self._records
        self._left.clear()
        return self._records != before

    def left(self, url: str) -> None:
        """A registered one has said here that it goes: its time is over at the next look."""
        self._left.add(url)
