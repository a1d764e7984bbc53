"""An S3 server on this machine: moto's, as pip installs it."""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time

import pytest

BUCKET = "tables"
STARTS_WITHIN_S = 30


@contextlib.contextmanager
def open_s3(directory):
    """Serve a bucket: gives the variables that say where it is, as every client of S3 has them."""
    if importlib.util.find_spec("moto") is None:
        required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
        (pytest.fail if required else pytest.skip)("moto is not installed: pip install --group objects")
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (directory / "moto.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait(port, process)
        env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "an-access-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret-key",
            "AWS_REGION": "us-east-1",
        }
        client(env).create_bucket(Bucket=BUCKET)
        yield env
    finally:
        process.terminate()
        process.wait(10)


def client(env):
    """The store by another client than ours."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        region_name=env["AWS_REGION"],
    )


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait(port, process):
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    pytest.fail("moto's server does not start")
