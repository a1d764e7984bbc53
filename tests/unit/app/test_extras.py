"""What is installed only where it is asked for."""

import sys

import pytest

from dispatcher.app.extras import require_kubernetes, require_tables
from dispatcher.errors import ConfigError


@pytest.mark.parametrize(
    ("require", "package", "extra"),
    [(require_tables, "pyarrow", "tables"), (require_kubernetes, "kubernetes_asyncio", "kubernetes")],
)
def test_a_missing_extra_is_named(monkeypatch, require, package, extra):
    require()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'dispatcher\[{extra}\]'"):
        require()
