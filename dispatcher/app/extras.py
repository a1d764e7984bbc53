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
