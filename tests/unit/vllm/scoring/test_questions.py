"""What is asked next, and how."""

from dispatcher.vllm.scoring.labels import label_set
from dispatcher.vllm.scoring.masked import Facts, Kind, Leaf
from dispatcher.vllm.scoring.questions import Question, next_question
from dispatcher.vllm.scoring.wire import question_body

LABELS = label_set(["ab", "ac", "xy", "xz"])


def node(path, mass, labels):
    return Leaf(Kind.NODE, path, mass, labels)


def facts():
    return Facts(texts={(): "", (1,): "a", (2,): "x"})


def test_the_largest_open_part_is_asked_about_first():
    parts = [
        node((1,), 0.3, ("ab", "ac")),
        node((2,), 0.6, ("xy", "xz")),
        Leaf(Kind.LABEL, (3,), 0.9, ("ab",)),
    ]
    question = next_question(LABELS, facts(), parts)
    assert (question.at, question.choice, question.forced) == ((2,), ("y", "z"), ())


def test_what_asking_did_not_resolve_is_not_asked_again():
    known = facts()
    known.hopeless.add((Kind.NODE, (2,)))
    parts = [node((1,), 0.3, ("ab", "ac")), node((2,), 0.6, ("xy", "xz"))]
    assert next_question(LABELS, known, parts).at == (1,)
    known.hopeless.add((Kind.NODE, (1,)))
    assert next_question(LABELS, known, parts) is None


def test_inside_a_character_the_first_bytes_are_led_by_bias_the_earliest_most():
    labels = label_set(["a日", "a旦"])
    known = Facts(texts={(): "", (1,): "a", (1, 2): "a\ufffd", (1, 2, 3): "a\ufffd"})
    question = next_question(labels, known, [node((1, 2, 3), 1.0, labels.texts)])
    assert (question.at, question.forced, question.choice) == ((1,), (2, 3), ("日", "旦"))
    body = question_body((7, 8), question, 20)
    assert body["prompt"] == [7, 8, 1]
    assert body["logit_bias"]["2"] > body["logit_bias"]["3"] > 0


def test_a_token_that_is_led_to_twice_has_the_greater_bias():
    leaf = node((5, 6, 5), 1.0, ("日", "旦"))
    body = question_body((), Question(leaf, (), ("日", "旦"), forced=(5, 6, 5)), 20)
    assert body["logit_bias"]["5"] > body["logit_bias"]["6"]


def test_a_text_that_ends_inside_a_character_is_of_labels_whose_next_character_has_several_bytes():
    labels = label_set(["aé", "ab", "a", "日"])
    assert labels.starting_with("a\ufffd", labels.texts) == ("aé",)
    assert labels.starting_with("\ufffd", labels.texts) == ("日",)
    assert labels.starting_with("a", labels.texts) == ("aé", "ab", "a")
    assert labels.starting_with("a", ("ab", "日")) == ("ab",)
