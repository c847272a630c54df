"""The contract of the shelf of log sentences: every sentence recognises its own examples, and only they decide."""

from __future__ import annotations

import pytest

from qdqtool.buildlog.grammar import KEY, PATTERNS, Grammar, grammar
from qdqtool.buildlog.messages import messages, parsed
from qdqtool.buildlog.place import Place
from qdqtool.buildlog.run import Run
from qdqtool.buildlog.sentence import Family, Section, Sentence, Shape

REGISTERED = {name: PATTERNS.load(name) for name in PATTERNS.names()}
FAMILIES = {**REGISTERED, "messages": Family(sentences=messages())}
SENTENCES = [
    pytest.param(sentence, id=f"{family}: {sentence.name}, {sentence.form[:40]!r}")
    for family, plug in FAMILIES.items()
    for sentence in plug.sentences
]
ROWS = [
    pytest.param(section, row, id=f"{family}: {section.opens} > {row.name}")
    for family, plug in FAMILIES.items()
    for section in plug.sections
    for row in section.rows
]


@pytest.mark.parametrize("name", list(REGISTERED))
def test_a_family_says_in_its_docstring_what_it_is_about(name):
    assert PATTERNS.manual(name)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_recognises_its_examples_among_all_sentences(sentence: Sentence | Shape):
    assert sentence.examples, "a sentence without an example has no test"
    for example in sentence.examples:
        found = grammar().read(example.strip())
        assert found is not None, example
        assert found[0] == sentence.name, example
        assert len(found[1]) == len(sentence.fields)


@pytest.mark.parametrize(("section", "row"), ROWS)
def test_a_row_recognises_its_examples(section: Section, row: Sentence | Shape):
    assert row.examples
    for example in row.examples:
        first = next(one for one in section.rows if one.read(example.strip()) is not None)
        assert first.name == row.name, example


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, id=shape.name) for plug in FAMILIES.values() for shape in plug.foreign]
)
def test_a_foreign_shape_recognises_its_examples_before_others_do(shape: Shape):
    assert shape.examples
    for example in shape.examples:
        assert next(one.name for one in grammar().foreign if one.read(example)) == shape.name


@pytest.mark.parametrize("name", list(FAMILIES))
def test_sections_open_with_a_sentence_that_exists(name):
    headings = {sentence.name for plug in FAMILIES.values() for sentence in plug.sentences}
    headings |= {row.name for plug in FAMILIES.values() for section in plug.sections for row in section.rows}
    assert {section.opens for section in FAMILIES[name].sections} <= headings


def test_wordings_of_one_name_have_the_same_number_of_fields():
    counts: dict[str, set[int]] = {}
    for plug in FAMILIES.values():
        for sentence in plug.sentences:
            counts.setdefault(sentence.name, set()).add(len(sentence.fields))
    assert not {name for name, numbers in counts.items() if len(numbers) > 1}


def test_light_sentences_have_enough_fixed_bytes_at_their_beginning_or_end():
    for sentence in grammar().light:
        fixed = sentence.head[:KEY] or sentence.before_id[-KEY:] or sentence.tail[-2 * KEY :]
        assert len(fixed) == (KEY if sentence.head or sentence.before_id else 2 * KEY)
        assert fixed.isascii()


def test_light_sentences_are_heard_by_nobody_but_rows_of_tuning():
    ears = set(Run(1, 1, Place()).ears())
    assert {sentence.name for sentence in grammar().light} & ears <= {"myelin-row"}


def test_one_family_alone_makes_a_grammar():
    alone = Grammar([PATTERNS.load("tuning")])
    assert alone.read("Tactic: 0x00000000000003ea Time: 0.0141162") == (
        "tactic",
        ("0x00000000000003ea", 0.0141162),
    )
    assert alone.read("Running: ConvReluFusion on Conv_1") is None


def test_messages_of_the_resource_are_handled_by_no_collector():
    handled = set(Run(1, 1, Place(), whole=True).ears())
    assert not handled & {message.name for message in messages()}


def test_a_line_of_the_resource_that_is_no_pattern_is_refused():
    with pytest.raises(ValueError, match="neither a topic"):
        parsed("[topic] About.\n\nNot a name: text\n")
