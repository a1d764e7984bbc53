"""Requests that no server in rotation can take: said aloud, and bounded where the user asked for it."""

from dataclasses import dataclass

from dispatcher.errors import ServersUnavailableError

SAY_AFTER_S = 1.0
"""A fleet that has just been found is being verified: that is no wait worth a word."""
SAY_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Something to say: for which models requests wait, and for how long already. None is any model."""

    models: tuple[str | None, ...]
    seconds: float


class Waiting:
    """Notes since when requests wait for a server, and when to say so. Times are monotonic seconds."""

    __slots__ = ("_said_at", "_since", "_stuck_since", "bound_s", "models")

    def __init__(self, bound_s: float | None) -> None:
        self.bound_s = bound_s
        self.models: tuple[str | None, ...] = ()
        """The models that requests wait for just now; empty where none waits."""
        self._since: float | None = None
        self._stuck_since: float | None = None
        self._said_at = float("-inf")

    @property
    def reason(self) -> str | None:
        """What requests wait for just now, in words; None where none waits."""
        if not self.models:
            return None
        return f"it waits: no server is in rotation for {_named(self.models)}"

    def look(self, unserved: set[str | None], *, stuck: bool, now: float) -> Wait | None:
        """Take in which models no server in rotation serves, and whether nothing else is going on.

        Returns what to say, every ten seconds. Raises ServersUnavailableError when the run has been stuck,
        with requests but no server for any of them, for longer than `pool.wait_for_servers_s`.
        """
        self.models = tuple(sorted(unserved, key=lambda model: model or ""))
        self._since = (self._since if self._since is not None else now) if unserved else None
        self._bound(stuck=stuck, now=now)
        if self._since is None or now - self._since < SAY_AFTER_S or now - self._said_at < SAY_EVERY_S:
            return None
        self._said_at = now
        return Wait(self.models, now - self._since)

    def _bound(self, *, stuck: bool, now: float) -> None:
        if not stuck:
            self._stuck_since = None
            return
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        if self.bound_s is not None and now - self._stuck_since >= self.bound_s:
            raise ServersUnavailableError(
                f"no server for {_named(self.models)} within {self.bound_s:g} s (pool.wait_for_servers_s): "
                "nothing is lost, and the same command goes on when there is one"
            )


def _named(models: tuple[str | None, ...]) -> str:
    return ", ".join(model or "any model" for model in models)
