"""Suggestions for mistyped commands, options and names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.commands import Run, runner, without_a_broker

from pybroker.cli.nearest_names import MAX_COMPARED, NotListed, advice_for, named_by, nearest

LISTS: dict[str, Any] = {
    "/admin/v2/tenants": ["acme", "public"],
    "/admin/v2/namespaces/acme": ["acme/shop"],
    "/admin/v2/namespaces/public": ["public/default"],
    "/admin/v2/persistent/acme/shop": ["persistent://acme/shop/pay", "persistent://acme/shop/big-partition-0"],
    "/admin/v2/persistent/acme/shop/partitioned": ["persistent://acme/shop/none-yet"],
    "/admin/v2/persistent/acme/shop/pay/subscriptions": ["billing", "audit"],
}


def advice(path: str) -> str:
    def fetch(asked: str) -> Any:
        if asked not in LISTS:
            raise NotListed
        return LISTS[asked]

    return advice_for(path, fetch)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/admin/v2/persistent/acme/shop/pya/stats", "Did you mean topic persistent://acme/shop/pay?"),
        ("/admin/v2/persistent/acme/shop/bigg/stats?x=1", "Did you mean topic persistent://acme/shop/big?"),
        ("/admin/v2/persistent/acme/shop/none-yett", "Did you mean topic persistent://acme/shop/none-yet?"),
        ("/admin/v2/persistent/acme/shop/zzz", "`pybroker topics acme/shop` lists the existing topics."),
        ("/admin/v2/persistent/acme/shop/pay/subscription/biling/unacked", "Did you mean subscription billing?"),
        (
            "/admin/v2/persistent/acme/shop/pay/subscription/zzz/unacked",
            "`pybroker subscriptions persistent://acme/shop/pay` lists the existing subscriptions.",
        ),
        ("/admin/v2/persistent/acme/shop/pay/subscription/billing/consumer/c/disconnect", ""),
        ("/admin/v2/persistent/acme/shop/pay/message/1", ""),
        ("/admin/v2/persistent/acme/shp", "Did you mean namespace acme/shop?"),
        ("/admin/v2/persistent/acme/shp/pay/stats", "Did you mean namespace acme/shop?"),
        ("/admin/v2/persistent/acne/shop/pay/stats", "Did you mean tenant acme?"),
        ("/admin/v2/namespaces/acne", "Did you mean tenant acme?"),
        ("/admin/v2/namespaces/acme/shpo/retention", "Did you mean namespace acme/shop?"),
        ("/lookup/v2/topic/persistent/acme/shop/pya", "Did you mean topic persistent://acme/shop/pay?"),
        ("/admin/v2/clusters/x", ""),
        ("/admin/v3/explain", ""),
        ("", ""),
    ],
)
def test_missing_object_gets_advice(path: str, wanted: str) -> None:
    assert advice(path) == wanted


def test_nearest_ignores_case_and_long_lists() -> None:
    assert nearest("MESSAGEttl", ["messageTTL", "retention"]) == "messageTTL"
    assert nearest("retenton", ["messageTTL", "retention"]) == "retention"
    assert nearest("x", ["messageTTL"]) is None
    assert nearest("a", ["a"] * (MAX_COMPARED + 1)) is None
    assert nearest("a" * 1000, ["a" * 1000]) is None


@given(st.text(), st.lists(st.text()))
def test_nearest_returns_a_known_word(word: str, known: list[str]) -> None:
    assert nearest(word, known) in {None, *known}


@given(st.lists(st.text()).map("/".join))
def test_every_path_can_be_parsed(path: str) -> None:
    named_by(path)
    named_by(f"/admin/v2/persistent/{path}")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("explian",), "unknown command 'explian'; did you mean explain?"),
        (("tokens", "crate", "-s", "x"), "unknown command 'crate'; did you mean create?"),
        (("topics", "--lng"), "unknown option --lng (did you mean --long?)"),
        (("tokens", "create", "--subjct", "x"), "unknown option --subjct (did you mean --subject?)"),
        (("policies", "get", "t", "retention", "--aplied"), "did you mean --applied?"),
        (("consume", "t", "--type", "shard"), "did you mean shared?"),
        (("completion", "bsh"), "did you mean bash?"),
        (("zzz\x1b[2J",), "unknown command"),
    ],
)
def test_mistyped_word_is_reported_with_similar_one(
    words: tuple[str, ...], wanted: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    without_a_broker(monkeypatch, "/nonexistent")
    run: Run = runner(capsysbinary)
    ran = run(*words)
    assert ran.code == 2
    assert wanted in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.rstrip("\n").isprintable()
    assert "--help`" in ran.err
