import pytest

from dispatcher.testing import tokens

TEXTS = ["", "one", "positively unlabelled", " a  b\n\tc ", "żółw 日本語 🎉", "\x00\u2028", "x" * 50]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back_from_its_tokens(text):
    pieces = tokens.pieces(text)
    assert "".join(pieces) == text
    assert "".join(tokens.decode(tokens.encode(pieces))) == text
    assert tokens.count(text) == len(pieces)


def test_a_blank_belongs_to_the_word_behind_it_and_a_long_word_is_several_tokens():
    assert tokens.pieces("so positive") == ["so", " posi", "tive"]


def test_ids_survive_any_json_reader():
    assert max(tokens.encode(tokens.pieces(" ~~~~🎉\x00"))) < 2**53


def test_an_id_of_nothing_is_a_replacement_character_not_an_error():
    assert tokens.decode([255]) == ["\ufffd"]
