"""`python -m dispatcher`, and the command `dispatcher`."""

import os
import sys

from dispatcher.cli.commands import app
from dispatcher.garbage import collect_rarely


def main() -> None:
    """Run the command line."""
    _open_missing_streams()
    collect_rarely()  # before the parts are imported: that alone makes hundreds of thousands of objects
    app()


def _open_missing_streams() -> None:
    """Give closed standard streams to /dev/null: a file opened there later would be taken for one.

    libuv aborts the process when it is to close a descriptor below 3.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - standard error's
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - the function takes no keywords
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


if __name__ == "__main__":
    main()
