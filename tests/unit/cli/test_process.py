"""A command as a process: what is left over does not hold up its end, and nothing makes it deaf."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from dispatcher.cli.exits import Exit

HELD_UP = """
import asyncio, sys, time
from dispatcher.cli import process
from dispatcher.cli.exits import Exit
from dispatcher.errors import {error}

process.ENDING_S = {ending_s}

def request_stop():
    print("asked", flush=True)
    return {answer}

async def command():
    with process.stopped_by_signals(request_stop):
        {inside}
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    print("ended", flush=True)
    {outcome}

sys.exit(process.run_command(command))
"""


@pytest.fixture
def started():
    processes = []

    def start(*, ending_s=60.0, answer=True, inside="pass", outcome="return Exit.DONE", error="StoppedError"):
        text = HELD_UP.format(ending_s=ending_s, answer=answer, inside=inside, outcome=outcome, error=error)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], **pipes))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("return Exit.FAILED_ROWS", Exit.FAILED_ROWS), ("raise StoppedError('because')", Exit.RESUMABLE)],
)
def test_a_thread_that_goes_on_does_not_hold_up_a_command_that_has_ended(started, outcome, status):
    process = started(ending_s=0.5, outcome=outcome)
    began = time.monotonic()
    told, complaint = process.communicate(timeout=50)
    assert process.returncode == status
    assert time.monotonic() - began < 50
    assert told == "ended\n"
    assert ("because" in complaint) == (status is Exit.RESUMABLE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_has_ended_but_is_held_up_hears_signals(started, number):
    process = started()
    assert process.stdout.readline() == "ended\n"
    process.send_signal(number)
    assert process.wait(timeout=50) == -number


def test_a_command_is_asked_to_end_and_ends_as_it_answers(started):
    process = started(answer=False, inside="print('began', flush=True); await asyncio.sleep(60)")
    assert process.stdout.readline() == "began\n"
    process.send_signal(signal.SIGTERM)
    told, complaint = process.communicate(timeout=50)
    assert (told, process.returncode) == ("asked\n", Exit.RESUMABLE)
    assert "run the same command to go on" in complaint
