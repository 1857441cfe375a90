"""Signing in to the console with OpenID Connect, in the browser."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.console.conftest import CHROMIUM
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.identity_provider import IdentityProvider

HOST = "console.example"
CLIENT_ID, SECRET = "console", "secret of the console"


@pytest.fixture(scope="module")
def provider() -> IdentityProvider:
    found = IdentityProvider("ES256")
    found.clients[CLIENT_ID] = SECRET
    found.user = "boss"
    return found


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("sign-in")
    authority = CertificateAuthority(directory)
    with provider.serving(authority.server()):
        settings = provider.login_settings(authority.certificate_path, HOST, CLIENT_ID)
        with BrokerProcess(directory, settings).running_well() as running:
            yield running


def test_user_signs_in_with_openid_connect_and_out_again(process: BrokerProcess) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no Playwright (the extra `dev`)")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (apt-get install chromium)")
    port = urlsplit(process.http_url).port
    rules = f"--host-resolver-rules=MAP {HOST}:80 127.0.0.1:{port}"
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rules])
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.set_default_timeout(20_000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"http://{HOST}/console/#/broker")
        page.click("text=Sign in with OpenID Connect")
        page.wait_for_selector("#who:has-text('boss')")
        page.wait_for_selector("main[aria-busy=false] h1:has-text('Broker')")
        assert page.url.endswith("/console/#/broker"), "the page from which the user left"
        assert page.evaluate("document.cookie") == "", "scripts cannot read the session"
        assert page.evaluate("Object.keys(sessionStorage).length") == 0
        page.reload()
        page.wait_for_selector("#who:has-text('boss')")
        page.click("#sign-out")
        page.wait_for_selector("text=Sign in with OpenID Connect")
        assert page.inner_text("#who") == ""
        assert not problems
        browser.close()
