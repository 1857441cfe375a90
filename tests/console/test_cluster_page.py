"""The page of a cluster in a browser: brokers, bundles with owners, and actions at any broker. The servers are modelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from tests.clients.conftest import until
from tests.console.conftest import opened
from tests.console.test_pages import assert_readable
from tests.protocol.test_cluster import ADMIN, TOPIC, rest
from tests.support.modelled_cluster import ClusterBroker, ModelledCluster, modelled_cluster, run_on_uvloop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.long
START_S = 30.0


class _Running:
    def __init__(self) -> None:
        self.cluster: ModelledCluster | None = None
        self.started = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stop: asyncio.Event | None = None

    async def run(self) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with modelled_cluster(has_membership=True) as self.cluster:
                assert await rest(self.cluster.brokers[0], "PUT", ADMIN) == (204, None)
                self.started.set()
                await self.stop.wait()
        finally:
            self.started.set()


@contextmanager
def _cluster() -> Iterator[ModelledCluster]:
    """A cluster in a thread of its own, because the browser's driver keeps an event loop in this one."""
    running = _Running()
    thread = threading.Thread(target=lambda: run_on_uvloop(running.run()))
    thread.start()
    try:
        assert running.started.wait(START_S)
        assert running.cluster is not None
        yield running.cluster
    finally:
        assert running.loop is not None
        assert running.stop is not None
        running.loop.call_soon_threadsafe(running.stop.set)
        thread.join(START_S)


def _owns(broker: ClusterBroker) -> bool:
    ownership = broker.service.ownership
    assert ownership is not None
    return any(str(each.namespace) == "public/default" for each in ownership.owned_bundles())


def test_cluster_page_shows_owners_and_transfers_splits_and_unloads(browser: Browser) -> None:
    with _cluster() as cluster:
        one, two = sorted(cluster.brokers, key=_owns, reverse=True)
        url, owner = two.registered.web_service_url, one.registered.broker_id
        with opened(browser, f"{url}/console/#/cluster") as page:
            brokers = page.get_by_role("table", name="Brokers")
            assert brokers.locator("tbody tr").count() == 2
            assert brokers.get_by_text("leader").count() == 1
            page.get_by_label("Search bundles").fill("public/default")
            page.get_by_text("of 4 bundles").wait_for()
            row = page.get_by_role("table", name="Bundles").locator("tr", has_text=owner)
            row.get_by_role("button", name="Transfer").click()
            page.get_by_role("dialog").get_by_label("To broker").select_option(two.registered.broker_id)
            page.get_by_role("dialog").get_by_role("button", name="Continue").click()
            dialog = page.get_by_role("dialog")
            assert "destinationBroker=" in dialog.inner_text()
            assert not _owns(two)
            dialog.get_by_role("button", name="Transfer").click()
            page.wait_for_selector("dialog", state="detached")
            until(lambda: _owns(two) and not _owns(one))
            row = page.get_by_role("table", name="Bundles").locator("tr", has_text=two.registered.broker_id)
            row.get_by_role("button", name="Split").click()
            page.get_by_role("dialog").get_by_role("button", name="Split").click()
            page.get_by_text("of 5 bundles").wait_for()
            row = page.get_by_role("table", name="Bundles").locator("tr", has_text=two.registered.broker_id)
            while row.count():
                before = row.count()
                row.first.get_by_role("button", name="Unload").click()
                page.get_by_role("dialog").get_by_role("button", name="Unload").click()
                page.wait_for_selector("dialog", state="detached")
                until(partial(_has_fewer, row, before))
            assert not _owns(two)
            assert_readable(page)


def _has_fewer(rows: Locator, before: int) -> bool:
    return rows.count() < before


def test_page_of_a_topic_leads_to_the_console_of_its_owner(browser: Browser) -> None:
    with _cluster() as cluster:
        one, two = sorted(cluster.brokers, key=_owns, reverse=True)
        at = f"/console/#/topic/{quote(TOPIC, safe='')}"
        with opened(browser, f"{two.registered.web_service_url}{at}") as page:
            page.get_by_text(f"Broker {one.registered.broker_id} serves this topic").wait_for()
            link = page.get_by_role("link", name="Open this page there")
            assert link.get_attribute("href") == f"{one.registered.web_service_url}{at}"
        with opened(browser, f"{one.registered.web_service_url}{at}") as page:
            page.wait_for_selector("h1:text-is('orders')")
            page.get_by_text("is not stuck").wait_for()


def test_page_of_topics_covers_all_brokers_and_leads_to_the_owner(browser: Browser) -> None:
    with _cluster() as cluster:
        one, two = sorted(cluster.brokers, key=_owns, reverse=True)
        here, owner = two.registered, one.registered
        with opened(browser, f"{here.web_service_url}/console/") as page:
            row = page.get_by_role("table", name="Topics").locator("tr", has_text="orders")
            link = row.get_by_role("link", name=owner.broker_id)
            link.wait_for()
            assert link.get_attribute("href") == f"{owner.web_service_url}/console/#/topic/{quote(TOPIC, safe='')}"
            row.get_by_text("no subscription").wait_for()
            page.get_by_text("Sums of the topics that match the search").wait_for()
            page.locator("select[name=broker]").select_option(here.broker_id)
            page.get_by_role("table", name="Topics").get_by_text("There are no topics that you may list").wait_for()
            page.locator("select[name=broker]").select_option(owner.broker_id)
            row.wait_for()
            assert f"broker={quote(owner.broker_id, safe='')}" in page.url
            assert_readable(page)
