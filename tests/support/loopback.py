"""What a test serves in its own process, on loopback."""

from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def served(application):
    """Serve an application: gives its URL, without a slash at the end."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
