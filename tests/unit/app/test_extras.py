"""What is installed only where it is asked for."""

import sys

import pytest

from dispatcher.app.extras import require_kubernetes, require_postgresql, require_tables
from dispatcher.errors import ConfigError


@pytest.mark.parametrize(
    ("require", "module", "extra"),
    [
        (require_tables, "pyarrow", "tables"),
        (require_postgresql, "asyncpg", "postgresql"),
        (require_kubernetes, "kubernetes_asyncio", "kubernetes"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, require, module, extra):
    require()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'dispatcher\[{extra}\]'"):
        require()
