"""What is installed only where it is asked for."""

from importlib import import_module

from dispatcher.errors import ConfigError, Fault


def require_tables() -> None:
    """Raises ConfigError where what tables need is not installed."""
    try:
        import_module("pyarrow")
    except ImportError as error:
        message = "needs pyarrow, which is not installed: pip install 'dispatcher[tables]'"
        raise ConfigError((Fault("annotate", message),)) from error


def require_postgresql() -> None:
    """Raises ConfigError where what a queue on PostgreSQL needs is not installed."""
    try:
        import_module("asyncpg")
    except ImportError as error:
        message = "needs asyncpg, which is not installed: pip install 'dispatcher[postgresql]'"
        raise ConfigError((Fault("queue.url", message),)) from error


def require_objects() -> None:
    """Raises ConfigError where what object stores need is not installed."""
    try:
        import_module("obstore")
    except ImportError as error:
        message = "needs obstore, which is not installed: pip install 'dispatcher[objects]'"
        raise ConfigError((Fault("storage.url", message),)) from error
