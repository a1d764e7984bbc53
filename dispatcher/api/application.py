"""The HTTP application: every route of the service under one set of rules."""

from aiohttp import web

from dispatcher.api import health
from dispatcher.api.context import CONTEXT, Context
from dispatcher.api.errors import answer_errors

BODY_BYTES_MAX = 64 * 2**20
"""What a JSON body may have, images in it included. Uploads are streamed, and have a bound of their own."""


def make_application(context: Context) -> web.Application:
    """The service's routes on what it works with."""
    application = web.Application(middlewares=[answer_errors], client_max_size=BODY_BYTES_MAX)
    application[CONTEXT] = context
    application.add_routes(health.routes())
    return application
