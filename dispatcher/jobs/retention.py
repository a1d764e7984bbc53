"""What is kept, and for how long. Pure."""

from collections.abc import Set as AbstractSet

from dispatcher.jobs.details import Details
from dispatcher.jobs.life import ENDED
from dispatcher.ports import Clock


class Retention:
    """How long what jobs need is kept, and what belongs to nothing.

    Args:
        clock: Its `wall()` is what times are held against, in seconds since the epoch.
        journals_kept_s: Of a job that has ended; None: until its files are gone.
        orphans_kept_s: Of what belongs to nothing: it may be something's yet.
    """

    def __init__(self, clock: Clock, journals_kept_s: float | None, orphans_kept_s: float) -> None:
        self._clock = clock
        self._journals_kept_s = journals_kept_s
        self._orphans_kept_s = orphans_kept_s

    @property
    def orphans_before(self) -> float:
        """What was written before this time, and belongs to nothing, is wanted by nobody."""
        return self._clock.wall() - self._orphans_kept_s

    def wants(self, details: Details, names: AbstractSet[str]) -> bool:
        """Whether a job's input and journals may still be needed, where files of these names are there.

        Once it has ended that is for its failed requests, which may be sent again.
        """
        if details.stage not in ENDED:
            return True
        ended_s = self._clock.wall() - (details.at(details.stage) or 0.0)
        if self._journals_kept_s is not None and ended_s > self._journals_kept_s:
            return False
        return not names.isdisjoint({details.output_file_id, details.error_file_id})
