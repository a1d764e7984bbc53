"""Run by Alembic: takes the revisions to the connection that `upgrade` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
