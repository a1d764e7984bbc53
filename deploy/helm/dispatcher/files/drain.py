"""Runs before a vLLM server is told to end, which breaks its open requests off: waits until it has none.

The dispatcher hears at once that the pod terminates, sends nothing more, and lets what is open end.
"""

import re
import sys
import time
import urllib.request

METRICS_URL, HEARD_S = sys.argv[1:] or ("http://127.0.0.1:8000/metrics", "10")
BUSY = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{.*\})? ([0-9.e+]+)", re.MULTILINE)


def busy() -> bool:
    """Whether requests run or wait there."""
    with urllib.request.urlopen(METRICS_URL, timeout=10) as answer:  # noqa: S310  # of this pod
        return any(float(value) for value in BUSY.findall(answer.read().decode()))


time.sleep(float(HEARD_S))
while busy():  # terminationGracePeriodSeconds ends it at the latest; an error does, too: the server is gone
    time.sleep(2)
