"""Tables are aligned, fit the terminal, and cannot control it."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.cli.output import BOLD, Output
from pybroker.cli.text_tables import (
    NARROWEST,
    Cell,
    age,
    ago,
    cell_text,
    columns_of,
    cut,
    facts,
    moment,
    printable,
    rate,
    size,
    table,
    value_text,
)


def test_columns_are_as_wide_as_what_is_in_them_and_numbers_stand_to_the_right() -> None:
    assert table(["NAME", "N", "DONE"], [["a", 5, True], ["longer", 12_345, False], ["b", None, True]]) == [
        "NAME         N  DONE",
        "a            5  yes",
        "longer  12,345  no",
        "b            -  yes",
    ]


def test_the_widest_columns_are_cut_until_a_line_fits() -> None:
    lines = table(["A", "B", "C"], [["x" * 100, "y" * 50, "z"]], width=60)
    assert 58 <= max(map(len, lines)) <= 60
    assert lines[1].endswith("  z")
    assert "…" in lines[1]


def test_table_too_narrow_for_its_columns_becomes_records() -> None:
    assert table(["NAME", "COUNT", "NOTE"], [["x" * 50, 1_234_567, ""], ["b", None, "y" * 50]], width=20) == [
        "NAME   xxxxxxxxxxxx…",
        "COUNT  1,234,567",
        "",
        "NAME   b",
        "NOTE   yyyyyyyyyyyy…",
    ]


def test_empty_columns_are_left_out_only_if_the_line_is_too_long() -> None:
    rows: list[list[Cell]] = [["x" * 20, None, ""], ["y", None, ""]]
    assert table(["A", "B", "C"], rows, 40)[0].split() == ["A", "B", "C"]
    assert table(["A", "B" * 20, "C"], rows, 40) == ["A", "x" * 20, "y"]


def test_topic_names_are_cut_in_the_middle() -> None:
    assert cut("persistent://public/default/orders-eu-west", 24) == "persistent:/…ers-eu-west"
    assert cut("a sentence about persistent://a/b/c", 20) == "a sentence about pe…"


_CELLS: st.SearchStrategy[Cell] = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(-1e9, 1e9), st.text(max_size=60)
)


@given(st.integers(1, 10).flatmap(lambda count: st.lists(st.lists(_CELLS, min_size=count, max_size=count), min_size=1)))
def test_table_without_width_keeps_all_text(rows: list[list[Cell]]) -> None:
    lines = table([f"COLUMN {index}" for index in range(len(rows[0]))], rows)
    assert len(lines) == len(rows) + 1
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.isprintable()
        assert all(printable(cell).rstrip() in line for cell in row if isinstance(cell, str))


@given(
    st.integers(1, 10).flatmap(lambda count: st.lists(st.lists(_CELLS, min_size=count, max_size=count), min_size=1)),
    st.integers(40, 200),
)
def test_table_lines_never_exceed_width_and_keep_numbers(rows: list[list[Cell]], width: int) -> None:
    lines = table([f"C{index}" for index in range(len(rows[0]))], rows, width)
    assert all(columns_of(line) <= width and line.isprintable() for line in lines)
    text = "\n".join(lines)
    for column in zip(*rows, strict=True):
        if all(cell is None or type(cell) in {int, float} for cell in column):
            assert all(cell_text(cell) in text for cell in column if cell is not None)


@given(st.text(max_size=80), st.integers(NARROWEST, 60))
def test_cut_fits_width_and_keeps_short_texts(text: str, width: int) -> None:
    shown = cut(text, width)
    assert columns_of(shown) <= width
    assert shown == text or columns_of(text) > width


def test_ago_tells_past_from_future() -> None:
    now_ms = 1_795_406_400_000
    times = (now_ms - 192_000, now_ms, now_ms + 250_000, 0, None)
    assert [ago(each, now_ms) for each in times] == ["3m 12s ago", "0ms ago", "in 4m 10s", None, None]


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert columns_of("日本") == 4
    assert columns_of("e\u0301") == 1
    assert columns_of(cut("日本語テキスト", 8)) <= 8
    first, second = table(["K", "V"], [["日本", "x"]])
    assert columns_of(first.partition("V")[0]) == columns_of(second.partition("x")[0])


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "two\nlines", "bell\a", "\u202eturned", "\x9b2J", "nul\0", "\ud800", "\x7f", "a\rb"]
)
def test_what_does_not_print_is_escaped(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert "\\" in shown
    assert all(line.isprintable() for line in table(["A"], [[text]]))
    assert facts([("a", text), ("left out", None)])[0].isprintable()


def test_bytes_are_shown_as_text_where_they_are_text() -> None:
    assert value_text("grün".encode()) == "grün"
    assert value_text(b"\xff\x00") == "0xff00"
    assert value_text(None) == "(null)"
    assert value_text(b"") == ""


def test_ages_sizes_rates_and_moments_are_short() -> None:
    assert [age(each) for each in (0, 350, 12_300, 250_000, 3_600_000, 266_400_000, -5, None)] == [
        "0ms",
        "350ms",
        "12.3s",
        "4m 10s",
        "1h",
        "3d 2h",
        "-5ms",
        None,
    ]
    assert [size(each) for each in (0, 1023, 1536, 5 << 30, 1 << 70)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "1024 EiB",
    ]
    assert [rate(each) for each in (0, 0.25, 3.14159, 12_345.6)] == ["0", "0.25", "3.1", "12,346"]
    assert moment(1_795_406_400_123) == "2026-11-23T04:00:00.123Z"
    assert moment(0) is None
    assert moment(10**18) == f"{10**18} ms"


def test_colours_are_for_terminals_only() -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    Output(plain).line("x", BOLD)
    Output(coloured, has_colours=True).line("x", BOLD)
    assert plain.getvalue() == "x\n"
    assert coloured.getvalue() == "\x1b[1mx\x1b[0m\n"
