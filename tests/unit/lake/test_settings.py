"""Settings from options and a file: what is wrong is told at once, and secrets never."""

from pathlib import Path
from typing import Any

import pytest

from pybroker.lake.settings import LakeSettings, SettingsRefused, load_settings

NEEDED: dict[str, Any] = {"topics": ["persistent://public/default/t"], "table": "n.t", "target": "/data"}


def test_defaults_are_those_of_the_class_and_what_is_said_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "lake.toml"
    file.write_text(
        'topics = ["a"]\ntable = "n.t"\ntarget = "/d"\ncommit-bytes = "64m"\ninterval = 3\n[catalog]\ntype = "rest"\n'
    )
    settings = load_settings(file, {"interval": "1.5", "name": None, "json": True})
    assert (settings.commit_bytes, settings.interval, settings.name) == (64 << 20, 1.5, "main")
    assert settings.topics == ("a",)
    assert settings.catalog == {"type": "rest"}
    assert settings.workers == LakeSettings.workers


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"topics": None}, "--topic"),
        ({"topics_pattern": "persistent://a/b/.*"}, "--topic"),
        ({"table": "t"}, "events.t"),
        ({"table": "../t", "format": "delta"}, "below --target"),
        ({"target": None}, "--target"),
        ({"format": "hudi"}, "iceberg, delta, parquet"),
        ({"commit_bytes": "many"}, "512m"),
        ({"workers": "0"}, "at least 1"),
        ({"workers": "x"}, "use a number"),
        ({"partition_by": "hour"}, "publish-hour"),
        ({"start": "yesterday"}, "earliest"),
        ({"name": "a b"}, "--name"),
        ({"rename": ["x"]}, "new=old"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_right(change: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsRefused, match=text):
        load_settings(None, {**NEEDED, **change})


def test_who_reads_nothing_names_no_topic_but_not_two_choices_of_them_either() -> None:
    without_topics = {**NEEDED, "topics": None}
    assert load_settings(None, without_topics, needs_topics=False).topics == ()
    with pytest.raises(SettingsRefused, match="--topic"):
        load_settings(None, {**NEEDED, "topics_pattern": "persistent://a/b/.*"}, needs_topics=False)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SettingsRefused) as refusal:
        load_settings(None, {"format": "x", "workers": 0})
    assert len(refusal.value.problems) >= 4


def test_a_setting_that_does_not_exist_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "lake.toml"
    file.write_text("partition_bi = 'none'")
    with pytest.raises(SettingsRefused, match="did you mean partition-by"):
        load_settings(file, NEEDED)


def test_secrets_are_not_shown() -> None:
    settings = load_settings(
        None, {**NEEDED, "auth_params": "token:abc", "catalog": {"token": "abc"}, "storage": {"secret": "abc"}}
    )
    assert "abc" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("1700000000000", 1700000000000),
        ("2023-11-14T22:13:20Z", 1700000000000),
        ("2023-11-14", 1699920000000),
    ],
)
def test_a_start_is_a_word_or_a_time(text: str, start: str | int) -> None:
    assert load_settings(None, {**NEEDED, "start": text}).start_place == start
