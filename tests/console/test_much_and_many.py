"""The console with 10,000 topics, and where it has to say who you are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jwt
import pytest
from tests.console.conftest import address, opened
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.long

KEY = b"01234567890123456789012345678901"
KEY_TEXT = "data:;base64,MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
PARTITIONS = 10_000


def token(role: str, **claims: float) -> str:
    return jwt.encode({"sub": role, **claims}, KEY)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        "tokenSecretKey": KEY_TEXT,
        "consoleSampleIntervalMs": "200",
    }
    with BrokerProcess(tmp_path_factory.mktemp("secured"), settings).running_well() as running:
        yield running


def as_admin(broker: BrokerProcess, method: str, path: str, body: object = None) -> None:
    answer = call(
        f"{broker.http_url}/admin/v2{path}", method, body=body, headers={"Authorization": f"Bearer {token('admin')}"}
    )
    assert answer.status < 300, answer


def as_nobody(broker: BrokerProcess, method: str, path: str) -> None:
    answer = call(f"{broker.http_url}/admin/v2{path}", method)
    assert answer.status < 300, answer


def sign_in(page: object, role: str) -> None:
    page.get_by_label("Token").fill(token(role))  # type: ignore[attr-defined]
    page.get_by_role("button", name="Sign in").click()  # type: ignore[attr-defined]


def test_who_you_are_is_asked_for_kept_nowhere_and_decides_what_may_be_pressed(
    browser: Browser, secured: BrokerProcess
) -> None:
    as_admin(secured, "POST", "/namespaces/public/default/permissions/reader", ["consume"])
    as_admin(secured, "PUT", "/persistent/public/default/guarded")
    as_admin(secured, "PUT", "/persistent/public/default/guarded/subscription/s")
    with opened(browser, address(secured, "topic", "persistent://public/default/guarded")) as page:
        page.get_by_label("Token").fill("no token")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector("text=does not accept these credentials")
        sign_in(page, "reader")
        page.wait_for_selector("#who:text-is('reader')")
        unload = page.get_by_role("button", name="Unload")
        assert unload.get_attribute("aria-disabled") == "true"
        page.get_by_text(
            "This needs tenant administrator permission, which role reader does not have."
        ).first.wait_for()
        unload.click(force=True)
        assert page.get_by_role("dialog").count() == 0
        page.get_by_role("link", name="s", exact=True).click()
        assert page.get_by_role("button", name="Skip all").get_attribute("aria-disabled") is None
        page.locator("select[name=consumer] option", has_text="any").wait_for(state="attached")
        assert page.evaluate("[document.cookie, sessionStorage.length, JSON.stringify(localStorage)].join()") == ",0,{}"
        assert page.context.cookies() == []
        page.get_by_role("link", name="Broker", exact=True).click()
        page.wait_for_selector("text=Role reader may not see this")
        page.reload()
        page.get_by_label("Token").wait_for()  # forgotten with the page
        page.get_by_label("store the credentials until this tab").check()
        sign_in(page, "admin")
        page.wait_for_selector("text=Version")
        page.reload()
        page.wait_for_selector("text=Version")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()
        assert page.evaluate("sessionStorage.length") == 0


def test_credentials_that_expire_are_renewed_without_leaving_the_page(browser: Browser, secured: BrokerProcess) -> None:
    with opened(browser, address(secured, "broker")) as page:
        page.get_by_label("Token").fill(token("admin", exp=time.time() + 5))
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector("text=Version")
        page.get_by_text("Your credentials expire at").wait_for()
        page.evaluate("document.querySelector('main').dataset.same = 'yes'")
        page.get_by_role("button", name="Sign in again").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Token").fill(token("admin"))
        dialog.get_by_role("button", name="Sign in", exact=True).click()
        dialog.wait_for(state="detached")
        page.wait_for_timeout(6000)  # the first token has expired
        assert page.locator("#renewal").count() == 0
        assert page.get_by_text("Live figures have ended").count() == 0
        assert page.get_by_label("Token").count() == 0
        assert page.evaluate("document.querySelector('main').dataset.same") == "yes"


def test_ten_thousand_topics_are_searched_sorted_and_turned_over(browser: Browser, tmp_path: Path) -> None:
    settings = {"maxNumPartitionsPerPartitionedTopic": "0", "consoleMaxLiveConnections": "0"}
    with BrokerProcess(tmp_path, settings).running_well() as broker:
        made = call(
            f"{broker.http_url}/admin/v2/persistent/public/default/many/partitions", "PUT", body=PARTITIONS // 2
        )
        assert made.status == 204, made
        made = call(
            f"{broker.http_url}/admin/v2/persistent/public/default/more/partitions", "PUT", body=PARTITIONS // 2
        )
        assert made.status == 204, made
        with opened(browser, address(broker, "")) as page:
            page.wait_for_selector("text=1 to 50 of 10,000")
            assert page.locator("tbody tr").count() == 50
            page.get_by_role("button", name="Next").click()
            page.wait_for_selector("text=51 to 100 of 10,000")
            page.get_by_role("button", name="Backlog").click()
            page.wait_for_selector("th[aria-sort=descending]")
            page.goto(address(broker, "") + "?offset=20000")  # there were more once
            page.wait_for_selector("text=9,951 to 10,000 of 10,000")
            page.get_by_label("Search topics").fill("more partition-4999")
            page.wait_for_selector("text=1 to 1 of 1")
            page.get_by_role("link", name="more-partition-4999").click()
            page.wait_for_selector("h1:text-is('more-partition-4999')")
            page.wait_for_selector("text=Cannot show live figures")  # and yet:
            as_nobody(broker, "PUT", "/persistent/public/default/more-partition-4999/subscription/new")
            page.get_by_role("link", name="new", exact=True).wait_for()
