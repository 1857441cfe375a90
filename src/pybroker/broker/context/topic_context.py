"""State that all parts of one topic (producers, subscriptions, compaction, transactions) share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.errors import BrokerError, TopicFenced
from pybroker.model.counters import TopicCounters
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.entry_filters import EntryFilter
    from pybroker.broker.limits.dispatch_rate_limit import DispatchRateLimit
    from pybroker.model.events import SendRun
    from pybroker.model.names import TopicName
    from pybroker.model.policies import NamespacePolicies, TopicPolicies
    from pybroker.runtime.tasks import TaskOwner


class TopicContext:
    """Shared state of one topic, such as name, policies, counters and background tasks, from load to close."""

    def __init__(
        self,
        broker_context: BrokerContext,
        name: TopicName,
        own_policies: TopicPolicies,
        tasks: TaskOwner,
        start_unload: Callable[[str], None],
    ) -> None:
        """`tasks` are cancelled and awaited before the topic's storage is closed. `start_unload` closes the topic in
        the background and logs the given reason.
        """
        self.broker_context = broker_context
        self.runtime = broker_context.runtime
        self.name = name
        self.tasks = tasks
        self.start_unload = start_unload
        self.counters = TopicCounters()
        self.is_fenced = False
        self.last_used_ms = self.runtime.clock.monotonic_ms()
        self.has_entry_metadata = False
        self.dispatch_rate_limit: DispatchRateLimit | None = None
        self._own_policies = own_policies
        self._policies: EffectivePolicies | None = None
        self._policies_of: tuple[NamespacePolicies | None, EffectivePolicies | None] = (None, None)

    # --- policies ----------------------------------------------------------------------------------------------------

    @property
    def policies(self) -> EffectivePolicies:
        """Effective policies of the topic, cached until a policy changes."""
        namespace, defaults = (
            self.broker_context.resources.namespace(self.name.namespace),
            self.broker_context.default_policies,
        )
        if self._policies is None or self._policies_of[0] is not namespace or self._policies_of[1] is not defaults:
            self._policies = self.broker_context.effective_policies(self.name.namespace, self._own_policies)
            self._policies_of = (namespace, defaults)
        return self._policies

    def set_own_policies(self, policies: TopicPolicies) -> None:
        """Replace the policies that are set on this topic, or on the partitioned topic of this partition."""
        self._own_policies = policies
        self._policies = None

    @property
    def entry_filters(self) -> tuple[EntryFilter, ...]:
        """Entry filters for all subscriptions of the topic; empty for a system topic."""
        if is_system_topic(self.name):
            return ()
        is_named_here = self.runtime.config.allow_override_entry_filters
        return self.broker_context.entry_filters.of(self.policies.entry_filter_names if is_named_here else None)

    @property
    def is_encryption_required(self) -> bool:
        return self.policies.encryption_required and not is_system_topic(self.name)

    # --- publishing --------------------------------------------------------------------------------------------------

    def refused(self, producer_name: str, peer_address: str, run: SendRun, error: BrokerError) -> None:
        """Count and record rejected messages of a producer for statistics and `explain`. The caller sends the error."""
        count = len(run.payloads)
        self.counters.publish_errors += count
        now_ms = self.runtime.clock.wall_ms()
        refusals = self.broker_context.refusals
        refusals.note(str(self.name), producer_name, peer_address, error, now_ms, is_of_messages=True, count=count)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def require_open(self) -> None:
        if self.is_fenced:
            raise TopicFenced(f"topic {self.name} is being unloaded, try again")

    def in_use(self) -> None:
        self.last_used_ms = self.runtime.clock.monotonic_ms()

    def fail(self, bug: Exception) -> None:
        """Close the topic after an unexpected exception. Clients look up the topic again, which reloads it."""
        self.runtime.stats.bugs += 1
        if not self.is_fenced:
            self.is_fenced = True
            self.start_unload(f"{type(bug).__name__}: {bug}")
