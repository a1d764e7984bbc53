"""Podman of the tests' own: its own storage, and manifests run without a Kubernetes."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

CONTAINERS = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
"""crun needs cgroups of one kind, and limits above ours need a right that a sandbox has not."""


def missing():
    """What keeps podman from being used; None where nothing does."""
    absent = [tool for tool in ("podman", "runc") if shutil.which(tool) is None]
    return f"{', '.join(absent)} is needed" if absent else None


def forget(folder):
    """Give a gigabyte back, which pytest would keep thrice."""
    subprocess.run(["umount", folder / "graph" / "overlay"], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Podman:
    """Storage in a folder."""

    folder: Path

    def __post_init__(self):
        places = f'runroot = "{self.folder}/run"\ngraphroot = "{self.folder}/graph"\n'
        (self.folder / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\n{places}')
        (self.folder / "containers.conf").write_text(CONTAINERS)

    @property
    def environment(self):
        names = {"CONTAINERS_STORAGE_CONF": "storage.conf", "CONTAINERS_CONF": "containers.conf"}
        return {**os.environ, **{name: str(self.folder / file) for name, file in names.items()}}

    async def __call__(self, *arguments, check=True, timeout_s=120.0):
        """`podman ARGUMENTS`: what it printed, stripped."""
        process = await asyncio.create_subprocess_exec(
            "podman",
            *map(str, arguments),
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if arguments[0] == "logs" else asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        assert not check or process.returncode == 0, f"podman {arguments[0]}: {(err or out).decode()}"
        return out.decode().strip()

    async def play(self, objects):
        """Run these objects, on the machine's own network."""
        path = self.folder / "objects.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        await self("play", "kube", "--network", "host", path)

    async def keep_secret(self, name, **items):
        """A Secret. What `play kube` itself makes of one, Debian 12's podman (4.3) cannot read."""
        path = self.folder / f"{name}.secret"
        path.write_text(
            json.dumps({key: base64.b64encode(text.encode()).decode() for key, text in items.items()})
        )
        await self("secret", "create", name, path)

    async def remove_all(self):
        """Every container, pod, volume and secret."""
        await self("pod", "rm", "--all", "--force", "--time", "0", check=False)
        await self("volume", "rm", "--all", "--force", check=False)
        await self("secret", "rm", "--all", check=False)
