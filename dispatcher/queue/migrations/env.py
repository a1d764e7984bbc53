"""Run by Alembic: takes the revisions to a connection, for `run`, or writes them down, for `as_sql`."""

from alembic import context

attributes = context.config.attributes
if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, output_buffer=attributes["output"])
else:
    context.configure(connection=attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
