"""Runs before a vLLM server is told to end, which breaks its open requests off: waits until it has none.

The dispatcher hears at once that the pod terminates, sends nothing more, and lets what is open end.
"""

import re
import sys
import time
import urllib.request

METRICS_URL, HEARD_S, ANSWER_S = sys.argv[1:] or ("http://127.0.0.1:8000/metrics", "10", "10")
BUSY = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{.*\})? ([0-9.e+]+)", re.MULTILINE)


HERE = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not by a proxy for downloads


def busy() -> bool:
    """Whether requests run or wait there. A server too busy to answer has some; one that is gone has none."""
    try:
        with HERE.open(METRICS_URL, timeout=float(ANSWER_S)) as answer:
            return any(float(value) for value in BUSY.findall(answer.read().decode()))
    except OSError as error:  # of which urllib's own has the reason within
        return isinstance(getattr(error, "reason", error), TimeoutError)


time.sleep(float(HEARD_S))
while busy():  # terminationGracePeriodSeconds ends it at the latest
    time.sleep(2)
