"""What holds of every queue, and of every one in a database, holds on PostgreSQL."""

import pytest
from queue_contract import *  # noqa: F403  # the tests
from queue_jobs_contract import *  # noqa: F403
from queue_nodes_contract import *  # noqa: F403

pytestmark = pytest.mark.services
