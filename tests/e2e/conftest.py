from fixtures import cli, job, serve, server, zygote
from postgres_server import postgres

__all__ = ["cli", "job", "postgres", "serve", "server", "zygote"]
