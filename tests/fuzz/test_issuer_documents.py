"""Hostile documents of an identity provider leave its client with correct keys or none, and planted bugs are found."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

import pytest
from tests.fuzz.issuer_documents import fuzz
from tests.support.planting import Plant, found_by_walk

from pybroker.auth.openid import issuer_keys, json_download, key_set
from pybroker.auth.openid.json_download import DownloadFailed, DownloadLimits, Response

ROUNDS = int(os.environ.get("FUZZ_EXAMPLES", "150"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
ROUNDS_OF_A_PLANT = 600
MAIN_KINDS = frozenset(
    {
        *(
            "valid",
            "no object",
            "odd keys",
            "odd discovery",
            "same key ids",
            "bad keys",
            "many keys",
            "huge",
            "truncated",
        ),
        *("redirect", "slow", "no HTTP", "status", "changed bytes"),
    }
)


def test_hostile_documents_leave_correct_keys_or_none() -> None:
    kinds = asyncio.run(fuzz(SEED, ROUNDS))
    assert ROUNDS < 150 or set(kinds) >= MAIN_KINDS


def deep_json_is_not_expected(patch: pytest.MonkeyPatch) -> None:
    async def download(url: str, limits: DownloadLimits, tls: Any) -> Any:
        response = await json_download._download(url, limits, tls, None)
        try:
            found = json.loads(response.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DownloadFailed(url)
        return found

    patch.setattr(json_download, "download_json", download)


def size_is_unlimited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(json_download, "MAX_DOCUMENT_BYTES", 1 << 40)


def response_may_take_any_time(patch: pytest.MonkeyPatch) -> None:
    before = json_download._download

    async def download(url: str, limits: DownloadLimits, tls: Any, form: Any) -> Response:
        return await before(url, DownloadLimits(limits.connect_s, 3600.0), tls, form)

    patch.setattr(json_download, "_download", download)


def number_of_keys_is_unlimited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(key_set, "MAX_KEYS", 1 << 40)


def last_key_of_a_key_id_counts(patch: pytest.MonkeyPatch) -> None:
    before = key_set.read_key_set

    def read(document: Mapping[str, Any]) -> Any:
        keys = document.get("keys")
        return before({"keys": [*reversed(keys)]} if isinstance(keys, list) else document)

    patch.setattr(issuer_keys, "read_key_set", read)


def small_keys_are_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(key_set, "MIN_RSA_BITS", 0)


def keys_for_encryption_are_used(patch: pytest.MonkeyPatch) -> None:
    before = key_set._read_key

    def read(document: Mapping[str, object]) -> Any:
        return before({name: value for name, value in document.items() if name != "use"})

    patch.setattr(key_set, "_read_key", read)


def issuer_of_the_document_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    before = issuer_keys.IssuerKeys._fetched

    async def fetched(self: issuer_keys.IssuerKeys) -> Any:
        download = self._download

        async def lax(url: str) -> dict[str, object]:
            return {**await download(url), "issuer": self.issuer}

        self._download = lax
        try:
            return await before(self)
        finally:
            self._download = download

    patch.setattr(issuer_keys.IssuerKeys, "_fetched", fetched)


def keys_url_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(json_download, "url_problem", lambda url, *, requires_https: "")


PLANTS: tuple[Plant, ...] = (
    deep_json_is_not_expected,
    size_is_unlimited,
    response_may_take_any_time,
    number_of_keys_is_unlimited,
    last_key_of_a_key_id_counts,
    small_keys_are_used,
    keys_for_encryption_are_used,
    issuer_of_the_document_is_not_compared,
    keys_url_is_not_checked,
)


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTS, ids=[plant.__name__ for plant in PLANTS])
def test_planted_bug_is_found(plant: Plant) -> None:
    with found_by_walk(plant):
        asyncio.run(fuzz(1, ROUNDS_OF_A_PLANT))
