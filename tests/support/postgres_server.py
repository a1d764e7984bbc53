"""A throwaway PostgreSQL on loopback for all tests of a session; each takes a fresh database of it."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from vllm_fleet import free_port

START_S_MAX = 30.0
STATEMENT_S_MAX = 300.0
LOCKED = "locked"
"""The only user who needs a password, once it is made."""
SETTINGS = (
    # What a crash of the machine would lose is of no interest here; what one of the server loses is.
    *("fsync=off", "full_page_writes=off", "listen_addresses=127.0.0.1", "max_connections=200"),
    *("shared_preload_libraries=pg_stat_statements", "max_wal_size=8GB", "shared_buffers=256MB"),
)
# The server ends when the pipe to its standard input does: with the tests, however they end.
KEEPER = 'postgres "$@" </dev/null & pid=$!; read -r _; kill -INT $pid; wait $pid'


class Postgres:
    """The server. `stop`, `kill` and `start` make an outage; the port stays the same."""

    def __init__(self, folder, binaries, primary=None):
        self.port = free_port()
        self._folder = folder
        self._binaries = binaries
        self._process = None
        self._numbers = itertools.count()
        self._account = (
            {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        )
        if self._account:
            shutil.chown(folder, "nobody", "nogroup")
        if primary is None:
            self._initialize(folder / "data")
        else:
            copied = ("-d", primary.url_of("postgres"), "-D", folder / "data", "-R", "-c", "fast", "-N")
            self._run("pg_basebackup", *copied)

    @property
    def url(self):
        """Of the maintenance database, as the superuser."""
        return self.url_of("postgres")

    def url_of(self, database, user="postgres"):
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def fresh_database(self, name=None, template="template1"):
        """Make an empty database, or a copy of another one, and return its URL."""
        name = name or f"test_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url_of(name)

    def drop_database(self, url):
        """Take one away that `fresh_database` made, whoever is connected to it: a thousand files each."""
        self.sql(f"DROP DATABASE {url.rsplit('/', 1)[1]} WITH (FORCE)")

    def role(self, name, options=""):
        """Make a user, if there is none of this name."""
        made = f"CREATE ROLE {name} LOGIN {options}"
        self.sql(f"DO $$ BEGIN {made}; EXCEPTION WHEN duplicate_object THEN END $$")

    def sql(self, statement, database="postgres", user="postgres"):
        """Run one statement and return what it shows, without decoration."""
        return self._run(
            "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url_of(database, user), "-c", statement
        )

    def start(self):
        arguments = [*itertools.chain.from_iterable(("-c", each) for each in self._settings())]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", KEEPER, "postgres", "-D", self._folder / "data", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": f"{self._binaries}:{os.environ['PATH']}"},
                start_new_session=True,
                **self._account,
            )
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.CalledProcessError):
                return self.sql("SELECT 1")
            time.sleep(0.05)
        raise AssertionError((self._folder / "log").read_text()[-4000:])

    def stop(self):
        """In order: whoever is connected is told so, and thrown out."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(START_S_MAX)
            self._process = None

    def kill(self):
        """At once, as by a power cut."""
        postmaster = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGQUIT)
        until = time.monotonic() + START_S_MAX
        while Path(f"/proc/{postmaster}/stat").exists() and time.monotonic() < until:
            if Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.01)
        self.stop()

    def _initialize(self, data):
        self._run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "--no-instructions")
        access = data / "pg_hba.conf"
        access.write_text(f"host all {LOCKED} 127.0.0.1/32 scram-sha-256\n{access.read_text()}")

    def _settings(self):
        yield from SETTINGS
        yield f"port={self.port}"
        yield f"unix_socket_directories={self._folder}"
        yield from ("logging_collector=off", "log_destination=stderr")

    def _run(self, command, *arguments):
        done = subprocess.run(
            [self._binaries / command, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=STATEMENT_S_MAX,
            cwd="/",
            **self._account,
        )
        return done.stdout.strip()


def binaries():
    """Where PostgreSQL's commands are. Skips, or fails where services are required."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / name).exists() for name in ("initdb", "postgres", "psql")):
            return folder
    reason = "no PostgreSQL server on this machine (apt: postgresql)"
    (pytest.fail if os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1" else pytest.skip)(reason)
    return None


@contextlib.contextmanager
def open_postgres(primary=None):
    """A server that runs until the context is left; given a primary, its standby."""
    folder = Path(tempfile.mkdtemp(prefix="dispatcher-postgres-"))
    try:
        server = Postgres(folder, binaries(), primary)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres():
    """One for the session; what a test does to the whole server, such as a restart, it must undo."""
    with open_postgres() as server:
        yield server
