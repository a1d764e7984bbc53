"""A worker's process, as `process.py` starts it by this file's path: `python program.py DESCRIPTOR PARENT`.

To import the package takes a second or more. So what ties the worker to its parent comes before that.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""prctl(2)."""
ORPHANED = 3
"""The exit status of a worker whose parent is gone."""


def main() -> None:
    """Work for the parent at the other end of the descriptor, and end with it."""
    descriptor, parent = map(int, sys.argv[1:])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before that
        sys.exit(ORPHANED)
    from dispatcher.app.workers.serving import serve  # noqa: PLC0415  # see above

    serve(descriptor, lambda: os._exit(ORPHANED))


if __name__ == "__main__":
    main()
