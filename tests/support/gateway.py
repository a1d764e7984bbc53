"""What may stand between the dispatcher and a server: a path prefix, TLS."""

import subprocess
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web


@asynccontextmanager
async def proxy(server, prefix="", context=None):
    """A gateway in front of a server: under a path, and behind TLS. Gives its URL."""
    async with aiohttp.ClientSession() as session:

        async def forward(request):
            if not request.path.startswith(f"{prefix}/"):
                return web.Response(status=404)
            url = server.url + request.path.removeprefix(prefix)
            async with session.request(request.method, url, data=await request.read()) as answer:
                body = await answer.read()
                return web.Response(status=answer.status, body=body, content_type=answer.content_type)

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            scheme = "https" if context else "http"
            yield f"{scheme}://127.0.0.1:{runner.addresses[0][1]}{prefix}"
        finally:
            await runner.cleanup()


def certificate(directory, subject="IP:127.0.0.1"):
    """A self-made certificate for this address or name, and its key."""
    paths = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=test",
            "-addext",
            f"subjectAltName={subject}",
            "-out",
            paths[0],
            "-keyout",
            paths[1],
        ],
        check=True,
        capture_output=True,
    )
    return paths
