"""Where the shared queue is, and that its password stays with the driver."""

import pytest
from pydantic import ValidationError

from dispatcher.config import load_config
from dispatcher.config.queue import queue_url
from dispatcher.config.settings import QueueSettings
from dispatcher.errors import ConfigError

SECRET = "p4ss%40word"  # noqa: S105  # it opens nothing


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://h/queue", "postgresql://h/queue"),
        ("postgres://h:5433/queue", "postgresql://h:5433/queue"),
        ("postgresql://me@h/queue", "postgresql://me@h/queue"),
        (f"postgresql://me:{SECRET}@h/queue", "postgresql://me@h/queue"),
        (f"postgresql://h/queue?user=me&password={SECRET}", "postgresql://h/queue"),
        (f"postgresql://me:{SECRET}@h1:1,h2:2/queue?sslmode=require", "postgresql://me@h1:1,h2:2/queue"),
        ("postgresql://me@[::1]:5432/queue", "postgresql://me@[::1]:5432/queue"),
        ("postgresql:///queue?host=/run/postgresql", "postgresql:///queue"),
    ],
)
def test_a_url_is_named_without_its_password(url, name):
    read = queue_url(url)
    assert (str(read), read.secret) == (name, url)
    assert "p4ss" not in repr(read)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///queue.db",
        "mysql://h/queue",
        "h/queue",
        "postgresql://h",
        "postgresql://h/",
        "postgresql://h/a/b",
        "postgresql://h:port/queue",
        f"postgresql://me:{SECRET}@x@h/queue",
        f"postgresql://me:{SECRET}/x@h/queue",
        f"postgresql://me:{SECRET}#x@h/queue",
        f"postgresql://me:{SECRET} @h/queue",
        "postgresql://h/queue\n",
        17,
        None,
    ],
)
def test_what_is_no_url_of_a_database_is_refused_without_repeating_it(url):
    if url == "postgresql://h/queue\n":
        assert queue_url(url).name == "postgresql://h/queue"  # white space around it is nothing
        return
    with pytest.raises(ValueError, match="must") as caught:
        queue_url(url)
    assert "p4ss" not in str(caught.value)


def test_a_password_needs_its_special_characters_escaped_and_is_told_how():
    with pytest.raises(ValueError, match=r"in a password, write @ : / \? # % as %40 %3A %2F %3F %23 %25"):
        queue_url("postgresql://me:a@b@h/queue")


def test_the_setting_is_read_from_everywhere_and_never_shown():
    config = load_config(None, {}, {"DISPATCHER_QUEUE__URL": f"postgresql://me:{SECRET}@h/queue"})
    assert config.queue.url.secret.endswith(f"{SECRET}@h/queue")
    for shown in (repr(config), str(config), config.model_dump_json(), repr(config.queue.model_dump())):
        assert "p4ss" not in shown


def test_a_setting_that_is_no_url_is_a_fault_without_the_value():
    with pytest.raises(ConfigError) as caught:
        load_config(None, {}, {"DISPATCHER_QUEUE__URL": f"mysql://me:{SECRET}@h/queue"})
    assert "queue.url: must begin with postgresql://" in str(caught.value)
    assert "p4ss" not in str(caught.value)
    with pytest.raises(ValidationError) as invalid:
        QueueSettings(url=f"mysql://me:{SECRET}@h/queue")
    assert "p4ss" not in str(invalid.value)


def test_a_drivers_text_is_passed_on_unless_it_repeats_the_password():
    url = queue_url(f"postgresql://me:{SECRET}@h/queue")
    assert url.without_secrets("`sslmode` is wrong") == "`sslmode` is wrong"
    for piece in (SECRET, "p4ss@word"):
        assert url.without_secrets(f"cannot read {piece}") == "is not a URL of a PostgreSQL database"
