"""File descriptors: each open request has one, its connection's."""

import resource
from typing import Final

_UNLIMITED: Final = 1_048_576
"""What Linux gives a process where nobody has limited it (`fs.nr_open`)."""


def descriptors_for_requests(reserved: int) -> int:
    """Raise this process's soft limit of descriptors to its hard one, and say how many requests may have.

    `reserved` are for everything else; 16 are left for requests however few there are.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(16, most - reserved)
