from fixtures import cli, job, serve, server, zygote
from object_store import bucket, s3
from postgres_server import postgres

__all__ = ["bucket", "cli", "job", "postgres", "s3", "serve", "server", "zygote"]
