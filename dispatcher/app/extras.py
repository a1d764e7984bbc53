"""What is installed only where it is asked for."""

from importlib import import_module

import structlog

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


def require_tracing(*, demanded: bool) -> bool:
    """Whether what tracing needs is installed. Where it is not and it was `demanded`, raises ConfigError.

    Where it was not, the log says what is missing.
    """
    try:
        import_module("opentelemetry.sdk.trace")
        import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        missing = "OpenTelemetry, which is not installed: pip install 'dispatcher[otel]'"
        if demanded:
            raise ConfigError((Fault("telemetry.otlp_endpoint", f"needs {missing}"),)) from error
        structlog.get_logger("dispatcher.tracing").warning("tracing_off", reason=f"it needs {missing}")
        return False
    return True


def require_kubernetes() -> None:
    """Raises ConfigError where what discovery on Kubernetes needs is not installed. It takes a second."""
    try:
        import_module("kubernetes_asyncio")
    except ImportError as error:
        message = "needs kubernetes-asyncio, which is not installed: pip install 'dispatcher[kubernetes]'"
        raise ConfigError((Fault("discovery.kubernetes", message),)) from error
