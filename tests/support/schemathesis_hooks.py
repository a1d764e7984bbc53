"""What schemathesis sends where the description alone would only let it guess. Loaded by its command line.

The variable KNOWN holds what there is: `{"file-id": [...], "job-id": [...], "server-url": [...]}`.
"""

import json
import os

import schemathesis
from hypothesis import strategies as st

KNOWN = json.loads(os.environ["KNOWN"])


def row(number, text):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


@st.composite
def inputs(draw):
    """A file of requests; every fourth has something else in it, too."""
    rows = [row(number, draw(st.text(max_size=20))) for number in range(draw(st.integers(1, 20)))]
    lines = [json.dumps(each).encode() for each in rows]
    if draw(st.integers(0, 3)) == 0:
        lines.append(draw(st.binary(max_size=40)))
    return b"\n".join(lines)


for name, values in KNOWN.items():
    schemathesis.openapi.format(name, st.sampled_from(values))
schemathesis.openapi.format("completion-window", st.sampled_from(["24h", "90m", "7d", "2s"]))
schemathesis.openapi.format("binary", inputs())


@schemathesis.hook
def map_body(context, body):
    """65 for 65.0, which JSON Schema takes for an integer, which no client writes, and which is refused."""
    if isinstance(body, dict):
        return {name: map_body(context, value) for name, value in body.items()}
    whole = isinstance(body, float) and body.is_integer() and abs(body) < 1e15
    return int(body) if whole else body
