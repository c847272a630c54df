"""The contract of registered log patterns: every pattern recognises its own examples, and only they decide."""

from __future__ import annotations

import pytest

from qdqtool.buildlog.grammar import KEY, PATTERNS, Grammar, grammar, messages, parse_patterns
from qdqtool.buildlog.log_run import Run
from qdqtool.buildlog.pattern import LogSection, MessagePattern, PatternSet, RegexPattern
from qdqtool.buildlog.prefilter import Place

REGISTERED = {name: PATTERNS.load(name) for name in PATTERNS.names()}
PATTERN_SETS = {**REGISTERED, "messages": PatternSet(patterns=messages())}
MESSAGE_PATTERNS = [
    pytest.param(pattern, id=f"{subject}: {pattern.name}, {pattern.form[:40]!r}")
    for subject, pattern_set in PATTERN_SETS.items()
    for pattern in pattern_set.patterns
]
ROWS = [
    pytest.param(section, row, id=f"{subject}: {section.opens} > {row.name}")
    for subject, pattern_set in PATTERN_SETS.items()
    for section in pattern_set.sections
    for row in section.rows
]


@pytest.mark.parametrize("name", list(REGISTERED))
def test_a_pattern_set_says_in_its_docstring_what_it_is_about(name):
    assert PATTERNS.manual(name)


@pytest.mark.parametrize("pattern", MESSAGE_PATTERNS)
def test_a_message_pattern_recognises_its_examples_among_all(pattern: MessagePattern | RegexPattern):
    assert pattern.examples, "a pattern without an example has no test"
    for example in pattern.examples:
        found = grammar().read(example.strip())
        assert found is not None, example
        assert found[0] == pattern.name, example
        assert len(found[1]) == len(pattern.fields)


@pytest.mark.parametrize(("section", "row"), ROWS)
def test_a_row_recognises_its_examples(section: LogSection, row: MessagePattern | RegexPattern):
    assert row.examples
    for example in row.examples:
        first = next(one for one in section.rows if one.read(example.strip()) is not None)
        assert first.name == row.name, example


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, id=shape.name)
        for pattern_set in PATTERN_SETS.values()
        for shape in pattern_set.foreign
    ],
)
def test_a_foreign_shape_recognises_its_examples_before_others_do(shape: RegexPattern):
    assert shape.examples
    for example in shape.examples:
        assert next(one.name for one in grammar().foreign if one.read(example)) == shape.name


@pytest.mark.parametrize("name", list(PATTERN_SETS))
def test_sections_open_with_a_pattern_that_exists(name):
    headings = {pattern.name for pattern_set in PATTERN_SETS.values() for pattern in pattern_set.patterns}
    headings |= {
        row.name
        for pattern_set in PATTERN_SETS.values()
        for section in pattern_set.sections
        for row in section.rows
    }
    assert {section.opens for section in PATTERN_SETS[name].sections} <= headings


def test_wordings_of_one_name_have_the_same_number_of_fields():
    counts: dict[str, set[int]] = {}
    for pattern_set in PATTERN_SETS.values():
        for pattern in pattern_set.patterns:
            counts.setdefault(pattern.name, set()).add(len(pattern.fields))
    assert not {name for name, numbers in counts.items() if len(numbers) > 1}


def test_light_patterns_have_enough_fixed_bytes_at_their_beginning_or_end():
    for pattern in grammar().light:
        fixed = pattern.head[:KEY] or pattern.before_id[-KEY:] or pattern.tail[-2 * KEY :]
        assert len(fixed) == (KEY if pattern.head or pattern.before_id else 2 * KEY)
        assert fixed.isascii()


def test_light_patterns_are_handled_by_nobody_but_rows_of_tuning():
    handlers = set(Run(1, 1, Place()).handlers())
    assert {pattern.name for pattern in grammar().light} & handlers <= {"myelin-row"}


def test_one_pattern_set_alone_makes_a_grammar():
    alone = Grammar([PATTERNS.load("tuning")])
    assert alone.read("Tactic: 0x00000000000003ea Time: 0.0141162") == (
        "tactic",
        ("0x00000000000003ea", 0.0141162),
    )
    assert alone.read("Running: ConvReluFusion on Conv_1") is None


def test_messages_of_the_resource_are_handled_by_no_collector():
    handled = set(Run(1, 1, Place(), whole=True).handlers())
    assert not handled & {message.name for message in messages()}


def test_a_line_of_the_resource_that_is_no_pattern_is_refused():
    with pytest.raises(ValueError, match="neither a topic"):
        parse_patterns("[topic] About.\n\nNot a name: text\n")
