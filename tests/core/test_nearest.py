"""Suggestions for misspelt words."""

from basinet.core.nearest import did_you_mean


def test_the_closest_word_is_suggested_and_all_are_listed_in_order():
    assert did_you_mean("xavir", ("xavier", "he", "lecun")) == " Did you mean 'xavier'? Known: he, lecun, xavier."


def test_case_does_not_matter_and_the_known_spelling_is_given():
    assert "Did you mean 'SWAG'?" in did_you_mean("swag", ("MAP", "SWAG"))


def test_nothing_is_suggested_where_nothing_is_close():
    assert did_you_mean("qqqq", ("MAP", "SWAG")) == " Known: MAP, SWAG."
