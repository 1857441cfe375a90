"""`pybroker policies`: Show, set or remove one policy of a topic or namespace, by its name in the REST API."""

from __future__ import annotations

import argparse
import json
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.cli.admin_rest import AdminRest, NotThere, namespace_path, path_of
from pybroker.cli.commands.api import json_body
from pybroker.cli.confirming import add_yes_option, require_confirmed
from pybroker.cli.exit_codes import EXIT_OK
from pybroker.cli.nearest_names import nearest
from pybroker.cli.output import add_json_option, output_of, write_done
from pybroker.cli.parsed_arguments import topic
from pybroker.cli.parsing import described
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.errors import InvalidTopicName
from pybroker.model.names import NamespaceName, TopicName

EXAMPLES = """
pybroker policies get orders retention
pybroker policies get orders retention --applied
pybroker policies set orders maxUnackedMessagesOnConsumer 1000
pybroker policies set orders publishRate '{"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1}'
pybroker policies set acme/orders messageTTL 3600
pybroker policies remove orders maxUnackedMessagesOnConsumer
"""
POLICIES = (
    "autoSubscriptionCreation",
    "autoTopicCreation",
    "backlogQuota",
    "compactionThreshold",
    "deduplication",
    "deduplicationEnabled",
    "deduplicationSnapshotInterval",
    "delayedDelivery",
    "dispatchRate",
    "encryptionRequired",
    "entryFilters",
    "inactiveTopicPolicies",
    "maxConsumers",
    "maxConsumersPerSubscription",
    "maxConsumersPerTopic",
    "maxMessageSize",
    "maxProducers",
    "maxProducersPerTopic",
    "maxSubscriptionsPerTopic",
    "maxTopicsPerNamespace",
    "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription",
    "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription",
    "messageTTL",
    "offloadPolicies",
    "persistence",
    "publishRate",
    "replicatorDispatchRate",
    "retention",
    "schemaCompatibilityStrategy",
    "schemaValidationEnforced",
    "subscribeRate",
    "subscriptionAuthMode",
    "subscriptionDispatchRate",
    "subscriptionExpirationTime",
    "subscriptionTypesEnabled",
)
"""Names for suggestions. The broker receives other names, too."""
LOSING = frozenset(
    {
        "backlogQuota",
        "inactiveTopicPolicies",
        "messageTTL",
        "retention",
        "subscriptionExpirationTime",
        "subscriptionTypesEnabled",
    }
)
"""Policies that can make the broker delete or skip data. Changing them needs confirmation."""
EVICTION = "consumer_backlog_eviction"


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    get = commands.add_parser("get", help="show the value that is set; with --applied, the effective value")
    change = commands.add_parser("set", help="set a policy to a value")
    remove = commands.add_parser(
        "remove", help="remove a policy, so that the value of the namespace or broker applies again"
    )
    for each, run in ((get, run_get), (change, run_set), (remove, run_remove)):
        each.add_argument(
            "target",
            type=topic_or_namespace,
            metavar="TOPIC|NAMESPACE",
            help="a topic, or a namespace as TENANT/NAMESPACE",
        )
        each.add_argument(
            "policy", metavar="POLICY", help="name of the policy in the REST API, such as retention or dispatchRate"
        )
        if each is change:
            each.add_argument(
                "value", metavar="JSON", help="the value in JSON; a text needs quotation marks: '\"text\"'"
            )
        if each is get:
            each.add_argument("--applied", action="store_true", help="show the effective value, from any level")
        else:
            add_yes_option(each)
        each.add_argument(
            "--type", metavar="T", help="type of the backlog quota: destination_storage (default) or message_age"
        )
        add_json_option(each)
        add_broker_options(each)
        each.set_defaults(run=run)


def topic_or_namespace(text: str) -> TopicName | NamespaceName:
    if text.count("/") != 1:
        return topic(text)
    try:
        return NamespaceName.parse(text)
    except InvalidTopicName as error:
        raise ArgumentTypeError(str(error)) from None


def run_get(options: argparse.Namespace) -> int:
    name = "backlogQuotaMap" if options.policy == "backlogQuota" else options.policy
    with AdminRest(broker_of(options)) as rest, _similar_policy(options.policy):
        answer = rest.get(f"{_base(options.target)}/{name}", {"applied": True if options.applied else None})
    output = output_of(options)
    if output.is_json or answer is not None:
        output.document(answer)
    else:
        output.line(f"{options.policy} is not set for {options.target}")
    return EXIT_OK


def run_set(options: argparse.Namespace) -> int:
    value = json_body(options.value)
    if loses_messages(options.policy, value):
        require_confirmed(
            options,
            f"This may be irreversible: {options.policy} of {options.target} can make the broker delete or skip data.",
        )
    _change(options, "POST", value)
    return write_done(options, f"{options.policy} of {options.target} is set to {json.dumps(value)}")


def run_remove(options: argparse.Namespace) -> int:
    if options.policy in LOSING:
        require_confirmed(
            options,
            f"This may be irreversible: {options.policy} of {options.target} then has the value of its namespace or of "
            "the broker.",
        )
    _change(options, "DELETE", None)
    return write_done(options, f"{options.policy} of {options.target} is removed")


def loses_messages(policy: str, value: object) -> bool:
    """Return whether setting `policy` to `value` can make the broker delete or skip messages."""
    if policy == "backlogQuota":
        return not isinstance(value, dict) or value.get("policy") in {EVICTION, None}
    return policy in LOSING


def _change(options: argparse.Namespace, method: str, body: object) -> None:
    query = {f"{options.policy}Type": options.type}
    with AdminRest(broker_of(options)) as rest, _similar_policy(options.policy):
        rest.change(method, f"{_base(options.target)}/{options.policy}", body, query)


@contextmanager
def _similar_policy(policy: str) -> Iterator[None]:
    try:
        yield
    except NotThere as error:
        similar = None if policy in POLICIES else nearest(policy, POLICIES)
        if similar and policy in str(error):
            error.advice = f"Did you mean policy {similar}?"
        raise


def _base(target: TopicName | NamespaceName) -> str:
    return path_of(target) if isinstance(target, TopicName) else f"/admin/v2/namespaces/{namespace_path(target)}"
