"""The HTTP application: every route of the service under one set of rules."""

from aiohttp import web

from dispatcher.api import (
    dashboard,
    events,
    health,
    jobs,
    nodes,
    openai_batches,
    openai_files,
    openai_live,
    openapi,
    registration,
    scrape_targets,
    servers,
)
from dispatcher.api.auth import make_authenticate
from dispatcher.api.bodies import bound_body
from dispatcher.api.context import CONTEXT, Context
from dispatcher.api.errors import answer_errors
from dispatcher.api.feed import Feed

BODY_BYTES_MAX = 64 * 2**20
"""What a JSON body may have, images in it included. Uploads are streamed, and have a bound of their own."""


def make_application(context: Context) -> web.Application:
    """The service's routes on what it works with."""
    middlewares = [answer_errors, make_authenticate(context), bound_body]
    application = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
    application[CONTEXT] = context
    application.add_routes(health.routes())
    application.add_routes(openai_files.routes())
    application.add_routes(openai_batches.routes())
    application.add_routes(jobs.routes())
    application.add_routes(servers.routes())
    application.add_routes(nodes.routes())
    application.add_routes(scrape_targets.routes())
    application.add_routes(registration.routes())
    application.add_routes(openai_live.routes())
    application.cleanup_ctx.append(openai_live.watching)
    application.add_routes(openapi.routes())
    application[openapi.DESCRIPTION] = openapi.Description()
    application.add_routes(dashboard.routes())
    application.add_routes(events.routes())
    application[events.FEED] = Feed(context)
    application.cleanup_ctx.append(events.feeding)
    application.on_shutdown.append(events.let_go)
    return application
