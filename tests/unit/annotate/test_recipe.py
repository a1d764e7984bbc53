"""Rows as the bodies of requests."""

import base64
import json

import pytest

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.recipe import Recipe, Recipes
from dispatcher.annotate.templates import Prompt
from dispatcher.errors import ConfigError

PNG = b"\x89PNG\r\n\x1a\n"


def prompt(text):
    return Prompt(text, "prompt.md", "annotate.prompt")


def asked(recipe, row):
    recipe.check(row)
    return json.loads(recipe.body(row))


def test_prompts_see_columns_by_name_and_the_row_itself():
    recipe = Recipe(prompt("{{ a }} {{ row['b c'] }}"), prompt("Be {{ a }}"), options={"temperature": 0})
    assert recipe.columns is None
    assert asked(recipe, {"a": 1, "b c": "x"}) == {
        "temperature": 0,
        "messages": [{"role": "system", "content": "Be 1"}, {"role": "user", "content": "1 x"}],
    }


def test_only_the_columns_that_are_named_are_needed():
    recipe = Recipe(
        prompt("{% for x in items %}{{ x }}{% endfor %}{{ range(3) | length }}"), image_columns=("i",)
    )
    assert recipe.columns == {"items", "i"}


@pytest.mark.parametrize(
    "text",
    ["{{ a }}", "{{ row.a }}", "{{ 1 / 0 }}", "{{ ''.__class__ }}", "{{ b + 1 }}", "{{ b[9] }}", "{{ b() }}"],
)
def test_what_cannot_be_rendered_is_a_fault_of_the_row(text):
    with pytest.raises(RowError, match="the prompt cannot be made"):
        Recipe(prompt(text)).check({"b": "x"})


def test_a_template_that_is_none_is_told_with_its_line():
    with pytest.raises(ConfigError, match=r"prompt\.md, line 2"):
        prompt("a\n{% if %}")


@pytest.mark.parametrize(
    ("cell", "url"),
    [
        ("https://x/a.png", "https://x/a.png"),
        (PNG, f"data:image/png;base64,{base64.b64encode(PNG).decode()}"),
        ({"bytes": PNG, "path": None}, f"data:image/png;base64,{base64.b64encode(PNG).decode()}"),
    ],
)
def test_images_go_before_the_prompt(cell, url):
    recipe = Recipe(prompt("What is it?"), image_columns=("i",))
    (message,) = asked(recipe, {"i": cell})["messages"]
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is it?"},
    ]


def test_an_images_path_is_read(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    body = asked(Recipe(prompt("?"), image_columns=("i",)), {"i": str(tmp_path / "a.png")})
    assert body["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")


@pytest.mark.parametrize("cell", [None, 1, b"text", "no/such.png", {"bytes": None, "path": None}])
def test_what_is_no_image_is_a_fault_of_the_row(cell):
    with pytest.raises(RowError) as told:
        Recipe(prompt("?"), image_columns=("i",)).check({"i": cell})
    assert told.value.column == "i"


@pytest.mark.parametrize(
    "cell", [[{"role": "user", "content": "a", "name": None}], '[{"role":"user","content":"a"}]']
)
def test_conversations_are_sent_without_their_nulls(cell):
    assert asked(Recipe(messages_column="m"), {"m": cell})["messages"] == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize("cell", [None, [], "a", "[]", [{"content": "a"}], ["a"], {"role": "user"}])
def test_what_is_no_conversation_is_a_fault_of_the_row(cell):
    with pytest.raises(RowError):
        Recipe(messages_column="m").check({"m": cell})


def steps(*texts):
    """Steps called a, b, ...; the answer of each is the column of that name."""
    return [
        (name, Recipe(Prompt(text, name, name)), {name}) for name, text in zip("abc", texts, strict=False)
    ]


def test_several_steps_look_at_the_columns_that_none_of_them_makes():
    assert Recipes(steps("{{ x }}", "{{ a }} {{ y }}", "{{ b }} {{ a }}")).columns == {"x", "y"}
    assert Recipes(steps("{{ x }}", "{{ row.y }}")).columns is None
    assert Recipes(steps("{{ x }}", "{{ c }}", "c")).columns == {"x", "c"}, "c comes later"


def test_what_a_later_step_lacks_is_told_before_the_first_is_asked():
    asked = Recipes(steps("{{ x }}", "{{ a.much.to_be_known }} {{ y }}"))
    asked.check({"x": 1, "y": 2})
    with pytest.raises(RowError, match="no such column, which step b needs") as error:
        asked.check({"x": 1})
    assert error.value.column == "y"
    with pytest.raises(RowError, match="division by zero"):
        Recipes(steps("a", "{{ 1 / x }}")).check({"x": 0})
