"""The console in a browser, against a real broker and official clients: what it shows, and what its buttons do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from tests.clients.conftest import admin, path_of, until
from tests.console.conftest import address, opened
from tests.console.protobuf_cases import cases, hostile
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.client import connect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_TEXT = "<script>alert('x')</script>\"'&\u202e"


class Order(Record):
    customer = String()
    amount = Integer()


def stuck_subscription(client: pulsar.Client, topic: str, subscription: str = "billing") -> pulsar.Consumer:
    """A consumer that holds all it may, and more behind it."""
    consumer = client.subscribe(
        topic, subscription, consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=5, consumer_name="worker"
    )
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(30):
        producer.send(b"m%d" % index, partition_key=f"key-{index}", properties={"number": str(index)})
    until(lambda: consumer._consumer is not None)
    return consumer


def test_topics_are_found_by_words_and_lead_to_their_pages(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    for name in ("alpha-orders", "beta-orders", "gamma"):
        client.create_producer(f"persistent://public/default/{name}").send(b"x")
    with opened(browser, f"{broker.http_url}/") as page:
        assert page.url == f"{broker.http_url}/console/"
        page.wait_for_selector("text=alpha-orders")
        page.get_by_label("Search topics").fill("orders BETA")
        page.wait_for_selector("text=1 to 1 of 1")
        assert page.locator("tbody tr").count() == 1
        page.get_by_role("link", name="beta-orders").click()
        page.wait_for_selector("h1:text-is('beta-orders')")
        page.wait_for_selector("text=standalone-")  # its producer
        page.wait_for_selector(".chart strong:text-matches('^[0-9]')")
        page.go_back()
        page.wait_for_selector("text=1 to 1 of 1")  # the search is part of the address


def test_hostile_names_keys_and_payloads_are_shown_as_the_texts_that_they_are(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    topic = f"persistent://public/default/{HOSTILE}"
    consumer = client.subscribe(
        topic, HOSTILE_TEXT, consumer_type=pulsar.ConsumerType.KeyShared, consumer_name=HOSTILE_TEXT
    )
    producer = client.create_producer(topic, producer_name=HOSTILE_TEXT, properties={HOSTILE_TEXT: HOSTILE_TEXT})
    producer.send(HOSTILE_TEXT.encode(), partition_key=HOSTILE_TEXT, properties={HOSTILE_TEXT: HOSTILE_TEXT})
    consumer.receive(30_000)
    for where, text in (
        (address(broker, ""), HOSTILE),
        (address(broker, "topic", topic), HOSTILE_TEXT),
        (address(broker, "subscription", topic, HOSTILE_TEXT), HOSTILE_TEXT),
        (address(broker, "messages", topic), HOSTILE_TEXT),
    ):
        with opened(browser, where) as page:
            page.get_by_text(text).locator("visible=true").first.wait_for()
            assert page.locator("main img, main script").count() == 0
            assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    with opened(browser, address(broker, "subscription", topic, HOSTILE_TEXT)) as page:
        page.get_by_role("link", name="Show messages").click()
        page.get_by_role("button", name="Explain this message").click()
        page.get_by_role("dialog").locator(".findings [data-code]").first.wait_for()
        page.go_back()
        page.wait_for_selector("dialog", state="detached")  # it goes with its page


def test_what_somebody_has_opened_and_where_the_focus_is_outlive_a_refresh(
    browser: Browser, broker: BrokerProcess
) -> None:
    with opened(browser, f"{broker.http_url}/console/") as page:
        found = page.evaluate(
            """async () => {
                const { h, renew } = await import("/console/dom.js");
                const part = h("div", {});
                const row = (name) => h("tr", {}, h("th", {}, name), h("td", {}, h("button", {}, "Explain")));
                const item = (code) => h("li", { "data-keep": code },
                    h("details", {}, h("summary", {}, `evidence ${Math.random()}`)));
                const draw = (codes, names) => renew(part, h("ol", {}, codes.map(item)), h("table", {}, names.map(row)));
                document.body.append(part);
                draw(["a", "b"], ["one", "two"]);
                part.querySelector("[data-keep=b] details").open = true;
                part.querySelectorAll("button")[1].focus();
                draw(["c", "b", "a"], ["none", "one", "two"]);
                const open = [...part.querySelectorAll("details")].map((each) => each.open);
                return [open, [...part.querySelectorAll("button")].indexOf(document.activeElement)];
            }"""
        )
    assert found == [[False, True, False], 2]


def test_an_address_that_makes_no_sense_is_answered_in_words(browser: Browser, broker: BrokerProcess) -> None:
    wrong = [
        ("topic", "garbage"),
        ("topic",),
        ("messages", "a://b"),
        ("subscription", "x"),
        ("topic", "persistent://a/b/%"),
    ]
    with opened(browser, address(broker, "constructor")) as page:
        page.wait_for_selector("h1:text-is('Topics')")
        for names in wrong:
            page.goto("about:blank")
            page.goto(address(broker, *names))
            page.locator("main .trouble").first.wait_for()
            assert "undefined" not in page.locator("main").inner_text()


def test_a_stuck_subscription_says_why_and_is_mended_by_buttons(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/stuck"
    consumer = stuck_subscription(client, topic)
    stats: dict[str, Any] = {}

    def now() -> dict[str, Any]:
        stats.update(admin(broker, "GET", f"{path_of(topic)}/stats").json["subscriptions"]["billing"])
        return stats

    until(lambda: now()["unackedMessages"] >= 5)
    with opened(browser, address(broker, "subscription", topic, "billing")) as page:
        page.wait_for_selector("[data-code=no-permits]")
        assert "worker" in page.locator("[data-code=no-permits] .sentence").inner_text()
        assert page.locator(".headline").inner_text().startswith("stuck Subscription billing is stuck for ")
        finding = page.locator("[data-code=no-permits]")
        assert finding.get_by_role("table", name="Evidence").get_by_role("rowheader").all_inner_texts() == ["worker"]
        assert "Why: A consumer's receiver queue is full" in finding.inner_text()
        assert f"explain {topic} billing --consumer=worker" in finding.locator(".to-do code").first.inner_text()
        page.get_by_role("table", name="Consumers").get_by_role("button", name="Explain").click()
        page.get_by_role("dialog").locator(".findings").get_by_text("worker").first.wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
        since = now()["consumers"][0]["connectedSince"]
        # Without another consumer the finding offers no disconnect; its button in the table is the operator's own decision.
        assert page.locator("[data-code=no-permits]").get_by_role("button", name="Disconnect").count() == 0
        page.get_by_role("table", name="Consumers").get_by_role("button", name="Disconnect").click()
        page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
        page.wait_for_selector("dialog", state="detached")
        until(lambda: [each["connectedSince"] for each in now()["consumers"]] not in ([], [since]))
        page.get_by_role("button", name="Skip all", exact=True).click()
        dialog = page.get_by_role("dialog")
        assert "POST /admin/v2/persistent/public/default/stuck/subscription/billing/skip_all" in dialog.inner_text()
        assert "This is irreversible" in dialog.inner_text()
        assert dialog.get_by_role("button", name="Skip all").is_disabled()  # before its box is checked
        dialog.get_by_role("button", name="Cancel").click()
        assert now()["msgBacklog"] == 30  # nothing happens that was not confirmed
        page.get_by_role("button", name="Skip all", exact=True).click()
        page.get_by_role("dialog").get_by_label("I understand").check()
        page.get_by_role("dialog").get_by_role("button", name="Skip all").click()
        page.wait_for_selector("dialog", state="detached")
        until(lambda: now()["msgBacklog"] == 0)
        page.wait_for_selector("text=Subscription billing is not stuck")
    consumer.close()


def test_a_full_quota_is_raised_by_a_plain_button_and_loses_messages_by_no_plain_one(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/quota"
    client.subscribe(topic, "slow", consumer_type=pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(20):
        producer.send(bytes(100))
    producer.close()
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    assert admin(broker, "POST", f"{path_of(topic)}/backlogQuota", quota).status == 204

    def backlog() -> int:
        stats = admin(broker, "GET", f"{path_of(topic)}/stats").json
        return int(stats["subscriptions"]["slow"]["msgBacklog"])

    with opened(browser, f"{broker.http_url}/console/") as page:
        stuck = page.get_by_role("region", name="Stuck topics")
        stuck.get_by_role("link", name=topic).click()
        buttons = page.locator("[data-code=backlog-quota] .to-do button")
        buttons.first.wait_for()
        texts = buttons.all_inner_texts()
        assert [text.split()[0] for text in texts] == ["Explain", "Raise", "Irreversible:", "Irreversible:"]
        for index, text in enumerate(texts):
            assert ("danger" in str(buttons.nth(index).get_attribute("class"))) == text.startswith("Irreversible")
        buttons.nth(2).click()
        dialog = page.get_by_role("dialog")
        assert dialog.get_by_role("button", name="Irreversible").is_disabled()
        assert f"pybroker --url {broker.http_url} policies set {topic} backlogQuota" in dialog.inner_text()
        dialog.get_by_role("button", name="Cancel").click()
        buttons.nth(1).click()
        page.get_by_role("dialog").get_by_role("button", name="Raise the backlog quota").click()
        page.wait_for_selector("dialog", state="detached")
        page.wait_for_selector("[data-code=backlog-quota]", state="detached")
    assert backlog() == 20
    client.create_producer(topic).close()


def test_held_messages_are_listed_filtered_and_acknowledged_one_by_one(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/held"
    consumer = stuck_subscription(client, topic)
    with opened(browser, address(broker, "subscription", topic, "billing")) as page:
        table = page.get_by_role("table", name="Unacknowledged messages")
        table.get_by_text("key-0").wait_for()
        page.get_by_label("Key", exact=True).first.fill("key-3")
        page.get_by_role("button", name="Show").click()
        table.get_by_text("key-0").wait_for(state="detached")
        assert table.locator("tbody tr").count() == 1
        table.get_by_role("button", name="Acknowledge").click()
        page.get_by_role("dialog").get_by_label("I understand").check()
        page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
        page.wait_for_selector("text=No unacknowledged messages match")
    backlog = admin(broker, "GET", f"{path_of(topic)}/stats").json["subscriptions"]["billing"]["msgBacklog"]
    assert backlog == 29
    consumer.close()


def test_a_key_is_followed_to_its_consumer_on_the_ring(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/keys"
    consumers = [
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.KeyShared, consumer_name=name)
        for name in ("one", "two")
    ]
    client.create_producer(topic).send(b"x", partition_key="k")
    with opened(browser, address(broker, "subscription", topic, "s")) as page:
        page.get_by_role("img", name=re.compile(r"Ring of hashes: one .* %, two .* %")).wait_for()
        form = page.get_by_role("region", name="Consumer of a key")
        form.get_by_label("Key", exact=True).fill("k")
        form.get_by_role("button", name="Look up").click()
        at = admin(broker, "GET", f"{path_of(topic)}/subscription/s/hash?key=k").json
        form.locator(".facts", has_text=str(at["hash"])).wait_for()
        assert at["consumer"]["name"] in form.inner_text()
    for consumer in consumers:
        consumer.close()


def test_what_became_of_a_message_is_told_where_it_is_shown(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/became"
    consumer = stuck_subscription(client, topic)
    with opened(browser, address(broker, "messages", topic) + "?subscription=billing") as page:
        page.get_by_role("button", name="Explain this message").first.click()
        page.get_by_role("dialog").locator(".findings [data-code]").first.wait_for()
    consumer.close()


def test_messages_are_decoded_by_their_schema(browser: Browser, broker: BrokerProcess, client: pulsar.Client) -> None:
    large = 2**60 + 1
    sent: list[tuple[str, Any, Any, str]] = [
        ("avro", AvroSchema(Order), Order(customer="Ada", amount=7), '"customer": "Ada",'),
        ("json", JsonSchema(Order), Order(customer="Bob", amount=8), '"customer": "Bob",'),
        ("text", pulsar.schema.StringSchema(), "grüße", "grüße"),
        ("bytes", pulsar.schema.BytesSchema(), b"\x00\x01\xff", "00 01 ff"),
    ]
    name_of = "persistent://public/default/decoded-{}".format
    for name, schema, value, _ in sent:
        client.create_producer(name_of(name), schema=schema, batching_enabled=False).send(value)
    producer = client.create_producer(name_of("batch"), batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for index in range(3):
        producer.send_async(b'{"n":%d}' % (large + index), lambda *_: None, partition_key=f"k{index}")
    producer.flush()
    with opened(browser, address(broker, "messages", name_of("batch"))) as page:
        page.locator("article pre", has_text=str(large + 2)).wait_for()  # not rounded
        assert page.locator("article pre").count() == 3
        for name, _, _, shown in sent:
            page.goto(address(broker, "messages", name_of(name)))
            page.locator("article pre", has_text=shown).wait_for()


def test_decoders_of_the_page_take_any_bytes_and_end(browser: Browser, broker: BrokerProcess) -> None:
    """Key and value, every primitive, logical types; and bytes that would make endless values."""
    with opened(browser, f"{broker.http_url}/console/") as page:
        found = page.evaluate(Path(__file__).with_name("decoding.js").read_text(encoding="utf-8"))
    wrong = [each for each in found if each["is"] != each["should"]]
    assert not wrong
    assert len(found) > 20


def test_protobuf_is_decoded_by_its_descriptor_as_its_own_library_reads_it(
    browser: Browser, broker: BrokerProcess
) -> None:
    told, refused = list(cases()), list(hostile())
    decode = """async (all) => {
        const { decodePayload } = await import("/console/decode.js");
        const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        return all.map(([data, payload]) => decodePayload(bytes(payload), { type: "PROTOBUF_NATIVE", data }));
    }"""
    with opened(browser, f"{broker.http_url}/console/") as page:
        found = page.evaluate(decode, [each[:2] for each in (*told, *refused)])
    for case, shown in zip(told, found, strict=False):
        assert "problem" not in shown, shown
        assert json.loads(shown["text"]) == case.expected
    for bad, shown in zip(refused, found[len(told) :], strict=True):
        assert bad.reason in shown["problem"], (bad.reason, shown)


@contextlib.contextmanager
def open_transaction(broker: BrokerProcess, topic: str) -> Iterator[None]:
    """One that has published to `topic`, on a loop of its own: the browser's driver has that of this thread."""
    has_published, is_over = threading.Event(), threading.Event()

    async def work() -> None:
        async with connect(broker.url) as client:
            producer = await client.producer(topic)
            transaction = await client.transaction()
            await producer.send(b"x", transaction=transaction)
            has_published.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        assert has_published.wait(20)
        yield
    finally:
        is_over.set()
        thread.join()


def test_open_transactions_are_listed_and_aborted(browser: Browser, broker: BrokerProcess) -> None:
    topic = "persistent://public/default/in-transaction"
    with open_transaction(broker, topic), opened(browser, address(broker, "transactions")) as page:
        table = page.get_by_role("table", name="Transactions that have not ended")
        table.locator("summary", has_text="1 topic, 0 subscriptions").click()
        table.get_by_role("link", name="in-transaction").wait_for()
        table.get_by_role("button", name="Abort").click()
        page.get_by_role("dialog").get_by_label("I understand").check()
        page.get_by_role("dialog").get_by_role("button", name="Abort").click()
        page.wait_for_selector("text=No transaction is open")
    assert not admin(broker, "GET", f"{path_of(topic)}/stats").json.get("openTransactions")


def test_the_broker_and_its_interface_are_shown_and_calls_can_be_tried(browser: Browser, broker: BrokerProcess) -> None:
    with opened(browser, address(broker, "broker")) as page:
        page.get_by_role("table", name="Parts of the memory").get_by_text("outboxes").wait_for()
        facts = page.locator("dl.facts")
        facts.locator("div", has_text=re.compile(r"^Disk\d.* of .* free$")).wait_for()
        facts.locator("div", has_text=re.compile(r"^Processor of the broker[\d.,]+ %$")).wait_for()
        page.locator("figcaption", has_text=re.compile(r"Processor, percent of a corebroker [\d.,]+")).wait_for()
        page.locator("figcaption", has_text=re.compile(r"Diskfree \d")).wait_for()
        page.get_by_label("Search settings").fill("consoleSample")
        page.get_by_role("table", name="Settings").get_by_text("200", exact=True).wait_for()
    with opened(browser, f"{broker.http_url}/docs") as page:
        page.get_by_label("Search calls").fill("get brokers/version")
        page.locator("summary", has_text="/admin/v2/brokers/version").click()
        page.get_by_role("button", name="Send GET").click()
        page.locator("pre.answer", has_text="0.1.0").wait_for()
        page.get_by_label("Search calls").fill("get console/topics")
        page.locator("summary", has_text="/admin/v3/console/topics").click()
        assert page.get_by_label("limit: maximum").get_attribute("placeholder") == "50"
        page.get_by_label("search: words").fill("no such & topic")
        page.get_by_label("sort: sort key").select_option("backlog")
        page.get_by_label("loaded: only").select_option("true")
        with page.expect_request("**/admin/v3/console/topics?*") as asked:
            page.get_by_role("button", name="Send GET").click()
        assert asked.value.url.endswith("?search=no%20such%20%26%20topic&sort=backlog&loaded=true")
        page.locator("pre.answer", has_text='"matching": 0').wait_for()
        page.get_by_role("link", name="openapi.json").wait_for()


def test_partitioned_and_non_persistent_topics_have_their_pages(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    admin(broker, "PUT", "/persistent/public/default/parts/partitions", 3)
    client.create_producer("persistent://public/default/parts").send(b"x")
    with opened(browser, address(broker, "topic", "persistent://public/default/parts")) as page:
        page.wait_for_selector("text=A partitioned topic of 3 partitions")
        page.get_by_role("link", name="parts-partition-2").click()
        page.wait_for_selector("h1:text-is('parts-partition-2')")
        page.get_by_role("region", name="Storage").wait_for()
    topic = "non-persistent://public/default/fleeting"
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    with opened(browser, address(broker, "topic", topic)) as page:
        page.get_by_role("link", name="s", exact=True).click()
        page.get_by_role("table", name="Consumers").get_by_text("Pulsar-").wait_for()
    consumer.close()


def test_live_figures_go_on_after_an_unload_and_a_lost_connection(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/unloaded"
    admin(broker, "PUT", path_of(topic))
    with opened(browser, address(broker, "topic", topic)) as page:
        page.wait_for_selector("text=Live figures of the last seconds")
        admin(broker, "PUT", f"{path_of(topic)}/unload")
        page.wait_for_selector("text=The topic is not loaded")
        page.wait_for_timeout(1000)
        assert topic not in [row["name"] for row in loaded_topics(broker)]  # looking has loaded nothing
        client.create_producer(topic).send(b"x")
        page.wait_for_selector("text=Live figures of the last seconds")


def loaded_topics(broker: BrokerProcess) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = call(f"{broker.http_url}/admin/v3/console/topics?loaded=true&limit=500").json["topics"]
    return rows


@pytest.mark.parametrize(("width", "dark"), [(390, True), (820, False), (1440, True)])
def test_no_page_is_wider_than_the_screen(
    browser: Browser, broker: BrokerProcess, client: pulsar.Client, width: int, dark: bool
) -> None:
    topic = "persistent://public/default/" + "long-" * 20
    client.subscribe(topic, "s" * 60, consumer_type=pulsar.ConsumerType.KeyShared)
    client.create_producer(topic).send(b"x" * 300, partition_key="k" * 100)
    pages = [
        ("",),
        ("topic", topic),
        ("subscription", topic, "s" * 60),
        ("messages", topic),
        ("transactions",),
        ("broker",),
        ("cluster",),
        ("docs",),
    ]
    with opened(browser, address(broker, *pages[0]), width=width, dark=dark) as page:
        for names in pages:
            page.goto(address(broker, *names))
            page.wait_for_selector("main[aria-busy=false] h1")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, names
            assert_readable(page)


LOW_CONTRAST = """() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([red, green, blue]) => [red, green, blue].map((each) => each / 255)
        .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
        .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
    const ground = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const [red, green, blue, opacity = 1] = parts(getComputedStyle(each).backgroundColor);
            if (opacity === 1) return light([red, green, blue]);
        }
        return light(parts(getComputedStyle(document.documentElement).backgroundColor));
    };
    const owns = (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    return [...document.querySelectorAll('body *')].filter((each) => each.checkVisibility() && owns(each)
        && !(each instanceof SVGElement) && !each.closest(':disabled, [aria-disabled], .unseen')).filter((each) => {
        const [one, other] = [light(parts(getComputedStyle(each).color)), ground(each)].sort((a, b) => b - a);
        return (one + 0.05) / (other + 0.05) < 4.5;
    }).map((each) => each.outerHTML.slice(0, 200));
}"""
"""Texts that are hard to see: less than 4.5 to 1 against what is behind them."""
CUT_OFF = """() => [...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth + 1)
    .map((each) => each.textContent.slice(0, 80))"""
"""Tables of which something is out of sight."""


def assert_readable(page: Page) -> None:
    """Every button and field has a name, every picture says what it is or is none, there is one main heading, every text can
    be seen, and no table is wider than its place.
    """
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate(CUT_OFF) == []
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, a, input, select, textarea')].filter((each) => each.offsetParent
            && !each.textContent.trim() && !each.getAttribute('aria-label')
            && !(each.labels && each.labels.length)).map((each) => each.outerHTML)"""
    )
    assert not unnamed
    assert page.locator("h1").count() == 1
    assert page.locator("svg:not([role=img]):not([aria-hidden])").count() == 0


def test_the_keyboard_reaches_everything_and_colours_can_be_switched(browser: Browser, broker: BrokerProcess) -> None:
    with opened(browser, f"{broker.http_url}/console/") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        before = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
        page.get_by_role("button", name="Switch to dark colours").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Switch to light colours").wait_for()
        assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") != before
        page.reload()
        page.get_by_role("button", name="Switch to light colours").wait_for()
        assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") != before
