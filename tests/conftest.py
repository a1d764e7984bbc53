import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """What one test makes of the log, by the Python face for one, is not the next one's."""
    yield
    structlog.reset_defaults()
