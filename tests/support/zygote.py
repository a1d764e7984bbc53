"""A process that has the command line's imports behind it and forks a command for each connection.

Importing takes more than a second of processor time, which a hundred quick tests need not pay each. What a
forked child runs is `python -m dispatcher`, with the arguments, environment, directory and streams asked for.

One JSON line comes in: `argv`, `env`, `cwd`, `stdin`, `stdout`, `stderr` (paths). Two go out: the command's
process id, and its status when it has ended (negative: the signal that killed it).
"""

import json
import os
import runpy
import select
import signal
import socket
import sys

import dispatcher.app.preview
import dispatcher.app.table
import dispatcher.cli.job  # noqa: F401  # the imports are what this process is for


def main(path):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:  # its end is our parent's
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    attend(connection)


def attend(connection):
    """Be the parent of one command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    lines = connection.makefile("rw")
    order = json.loads(lines.readline())
    pid = os.fork()
    if pid == 0:
        connection.close()
        run(order)
    print(pid, file=lines, flush=True)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), file=lines, flush=True)
    os._exit(0)


def run(order):
    """Become the command."""
    for number, name, flags in (
        (0, order["stdin"], os.O_RDONLY),
        (1, order["stdout"], os.O_WRONLY | os.O_CREAT),
        (2, order["stderr"], os.O_WRONLY | os.O_CREAT),
    ):
        descriptor = os.open(name, flags, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    sys.argv = ["dispatcher", *order["argv"]]
    status = 1
    try:
        runpy.run_module("dispatcher", run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
