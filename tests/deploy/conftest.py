from fixtures import cli, job, serve, server, zygote

__all__ = ["cli", "job", "serve", "server", "zygote"]
