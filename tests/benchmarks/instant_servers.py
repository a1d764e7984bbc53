"""Servers that cost next to nothing: nginx with one fixed answer."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from children import pin

MODEL = "instant"
READY_S_MAX = 10.0
STOP_S_MAX = 10.0


def nginx_path() -> str | None:
    """Where nginx is; None where it is not installed. Debian has it outside an ordinary user's PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def instant_servers(folder: Path, count: int, core: int | None) -> Iterator[Sequence[str]]:
    """Serve a vLLM chat answer on `count` ports of one nginx process; yields the base URLs.

    It is kept to `core`; None: it runs where there is room.
    """
    nginx = nginx_path()
    assert nginx is not None, "the caller skips without nginx"
    ports = _free_ports(count)
    config = folder / "nginx.conf"
    config.write_text(_config(folder, ports))
    command = [nginx, "-e", str(folder / "nginx.log"), "-p", str(folder), "-c", str(config)]
    server = subprocess.Popen(command, preexec_fn=lambda: pin(core))  # noqa: PLW1509
    try:
        for port in ports:
            _wait_for(server, port)
        yield [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        server.terminate()
        server.wait(STOP_S_MAX)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + READY_S_MAX
    while time.monotonic() < until and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"nginx does not answer on port {port}; its exit status is {server.poll()}")


def _config(folder: Path, ports: Sequence[int]) -> str:
    """One process; `return` discards a request's body (ngx_http_send_response), so connections live on."""
    listens = "\n".join(f"    listen 127.0.0.1:{port} backlog=4096;" for port in ports)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"  {kind}_temp_path {folder}/{kind};" for kind in kinds)
    return f"""
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log crit;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
{temporary}
  access_log off;
  tcp_nodelay on;
  keepalive_timeout 300s;
  keepalive_requests 1000000000;
  client_body_buffer_size 1m;
  client_max_body_size 64m;
  default_type application/json;
  server {{
{listens}
    location = /health {{ return 200 ""; }}
    location = /v1/models {{ return 200 '{_models()}'; }}
    location = /v1/chat/completions {{ return 200 '{_answer()}'; }}
    location / {{ return 404 '{{"detail":"Not Found"}}'; }}
  }}
}}
"""


def _models() -> str:
    entry = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "parent": None}
    return json.dumps({"object": "list", "data": [entry]}, separators=(",", ":"))


def _answer() -> str:
    """A chat answer of about 600 bytes, with the fields that vLLM 0.32 sends."""
    message = {
        "role": "assistant",
        "content": "The review is positive: the writer praises the screen and would buy it again. " * 2,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "reasoning": None,
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    answer = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": MODEL,
        "choices": [choice],
        "service_tier": None,
        "usage": {"prompt_tokens": 42, "total_tokens": 74, "completion_tokens": 32},
        "prompt_logprobs": None,
    }
    return json.dumps(answer, separators=(",", ":"))
