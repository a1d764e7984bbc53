"""What is installed only where it is asked for."""

import sys

import pytest

from dispatcher.app.extras import require_tables
from dispatcher.errors import ConfigError


def test_a_missing_extra_is_named(monkeypatch):
    require_tables()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'dispatcher\[tables\]'"):
        require_tables()
