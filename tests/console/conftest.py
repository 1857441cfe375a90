"""One broker, official clients on it, and a Chromium that is told what to press; left out where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

import pulsar
import pytest
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; nothing is downloaded for it.

    For no longer than a module: the driver keeps an event loop running in this thread, where other tests want to run theirs.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no Playwright (the extra `dev`)")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (apt-get install chromium)")
    with playwright.sync_playwright() as running:
        # Its sandbox needs rights that a container's root does not have; it sees this broker only.
        launched = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"consoleSampleIntervalMs": "200", "transactionCoordinatorEnabled": "true"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running_well() as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    connected = new_client(broker.url)
    yield connected
    connected.close()


@contextmanager
def opened(browser: Browser, url: str, *, width: int = 1440, dark: bool = False) -> Iterator[Page]:
    """A page of a browser of its own. Fails when anything went wrong in it, or a dialog of the browser's own appeared."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.set_default_timeout(20_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}") or dialog.dismiss())  # type: ignore[call-overload, func-returns-value]
    page.on(
        "console",
        # A refusal that the page shows is logged by the browser, too.
        lambda message: (
            problems.append(message.text)
            if message.type == "error" and "the server responded with a status" not in message.text
            else None
        ),
    )
    page.on(
        "request",
        lambda request: None if request.url.startswith(url[: url.index("/", 8)]) else problems.append(request.url),
    )
    page.goto(url)
    page.wait_for_selector("main[aria-busy=false]")
    try:
        yield page
    finally:
        context.close()
    assert not problems


def address(broker: BrokerProcess, page: str, *names: str) -> str:
    """Where a page of the console is."""
    return f"{broker.http_url}/console/#/" + "/".join([page, *(quote(name, safe="") for name in names)])
