"""The `# HELP` lines of the page.

A key is the name of the family on the page; a counter's name ends with `_total`. For a metric of Pulsar, the text
describes the value that this broker reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_BUCKETS_MS = {
    "le_0_5": "0.5 ms or less",
    "le_1": "0.5 to 1 ms",
    "le_5": "1 to 5 ms",
    "le_10": "5 to 10 ms",
    "le_20": "10 to 20 ms",
    "le_50": "20 to 50 ms",
    "le_100": "50 to 100 ms",
    "le_200": "100 to 200 ms",
    "le_1000": "200 to 1000 ms",
    "overflow": "more than 1000 ms",
}
_BUCKETS_BYTES = {
    "le_128": "128 bytes or less",
    "le_512": "129 to 512 bytes",
    "le_1_kb": "513 bytes to 1 KiB",
    "le_2_kb": "1 to 2 KiB",
    "le_4_kb": "2 to 4 KiB",
    "le_16_kb": "4 to 16 KiB",
    "le_100_kb": "16 to 100 KiB",
    "le_1_mb": "100 KiB to 1 MiB",
    "le_overflow": "more than 1 MiB",
}
_TXN_BOUNDS_MS = (10, 20, 50, 100, 500, 1000, 5000, 15_000, 30_000, 60_000, 300_000, 1_500_000, 3_000_000)


def _buckets(name: str, measured: str, buckets: Mapping[str, str], sum_unit: str = "milliseconds") -> dict[str, str]:
    """Return the texts of one histogram: each bucket, then count and sum."""
    texts = {f"{name}_{suffix}": f"Number of {measured}: {bounds}." for suffix, bounds in buckets.items()}
    return {
        **texts,
        f"{name}_count": f"Number of {measured}.",
        f"{name}_sum": f"Sum over all {measured}, in {sum_unit}.",
    }


def _prefixed(prefix: str, texts: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{name}": text for name, text in texts.items()}


def _txn_buckets(bounds: Sequence[int]) -> dict[str, str]:
    lower = (0, *bounds)
    between = {f"le_{upper}": f"{low} to {upper} ms" for low, upper in zip(lower, bounds, strict=False)}
    return {**between, "overflow": f"more than {bounds[-1]} ms"}


_TOPICS = {
    "topics_count": "Loaded topics of the namespace.",
    "subscriptions_count": "Subscriptions of the topic.",
    "producers_count": "Producers connected to the topic.",
    "consumers_count": "Consumers connected to the topic.",
    "rate_in": "Messages published per second.",
    "rate_out": "Messages delivered per second.",
    "throughput_in": "Bytes published per second.",
    "throughput_out": "Bytes delivered per second.",
    "in_bytes_total": "Bytes published since the topic was loaded.",
    "in_messages_total": "Messages published since the topic was loaded.",
    "out_bytes_total": "Bytes delivered since the topic was loaded or the consumer connected.",
    "out_messages_total": "Messages delivered since the topic was loaded or the consumer connected.",
    "msg_backlog": "Entries that are not acknowledged, summed over the subscriptions.",
    "storage_size": "Bytes stored.",
    "storage_logical_size": "Bytes stored, without copies: the same as pulsar_storage_size.",
    "storage_backlog_size": "Estimated bytes behind the slowest durable subscription.",
    "storage_offloaded_size": "Bytes offloaded to other storage: always 0.",
    "storage_write_rate": "Entries stored per second.",
    "storage_read_rate": "Entries read per second.",
    "storage_read_cache_misses_rate": "Entries read per second that were not in memory.",
    "delayed_message_index_size_bytes": "Memory of the index of delayed entries.",
    "average_msg_size": "Average bytes of a published message in the last window.",
    "publish_rate_limit_times": "How often a publish rate limit held a producer back.",
    "storage_backlog_quota_limit": "Backlog quota by size in bytes; negative: none.",
    "storage_backlog_quota_limit_time": "Backlog quota by age in seconds; negative: none.",
    "storage_backlog_age_seconds": "Age of the oldest unacknowledged message at the last check; negative: unknown.",
    "storage_backlog_quota_exceeded_evictions_total": "Checks in which a backlog quota evicted messages, by quota type.",
    "storage_backlog_quota_check_duration_seconds": "Duration of the periodic check of all backlog quotas.",
}
_SUBSCRIPTIONS = {
    "back_log": "Entries that are not acknowledged.",
    "back_log_no_delayed": "Entries that are not acknowledged and not delayed.",
    "delayed": "Entries that wait for their delivery time.",
    "delayed_message_index_size_bytes": "Memory of the index of delayed entries.",
    "in_replay": "Entries to be redelivered, or read and not deliverable yet.",
    "msg_rate_out": "Messages delivered per second.",
    "msg_throughput_out": "Bytes delivered per second.",
    "msg_rate_redeliver": "Messages redelivered per second.",
    "msg_ack_rate": "Messages acknowledged per second.",
    "msg_rate_expired": "Entries expired per second.",
    "msg_drop_rate": "Messages per second that no consumer of a non-persistent topic could take.",
    "total_msg_expired": "Entries expired since the topic was loaded.",
    "unacked_messages": "Messages delivered and not acknowledged.",
    "blocked_on_unacked_messages": "1 while the limit of unacknowledged messages stops delivery.",
    "consumers_count": "Consumers connected to the subscription.",
    "last_expire_timestamp": "Time of the last expiry in milliseconds since 1970; 0: never.",
    "last_acked_timestamp": "Time of the last acknowledgement in milliseconds since 1970; 0: never.",
    "last_consumed_flow_timestamp": "Time of the last FLOW command in milliseconds since 1970; 0: never.",
    "last_consumed_timestamp": "Time of the last delivery in milliseconds since 1970; 0: never.",
    "last_mark_delete_advanced_timestamp": "Time of the last move of the mark-delete position, in ms since 1970; 0: never.",
    "filter_processed_msg_count": "Messages that entry filters processed.",
    "filter_accepted_msg_count": "Messages that entry filters accepted.",
    "filter_rejected_msg_count": "Messages that entry filters rejected.",
    "filter_rescheduled_msg_count": "Messages that entry filters rescheduled.",
    "dispatch_throttled_msg_events": "How often a message rate limit held delivery back, by the level of the limit.",
    "dispatch_throttled_bytes_events": "How often a byte rate limit held delivery back, by the level of the limit.",
}
_CONSUMERS = {
    "msg_rate_out": "Messages delivered per second.",
    "msg_throughput_out": "Bytes delivered per second.",
    "msg_rate_redeliver": "Messages redelivered per second.",
    "msg_ack_rate": "Messages acknowledged per second.",
    "unacked_messages": "Messages delivered and not acknowledged.",
    "blocked_on_unacked_messages": "1 while the limit of unacknowledged messages stops delivery.",
    "available_permits": "Permits that the consumer has left.",
}
_PRODUCERS = {
    "msg_rate_in": "Messages published per second.",
    "msg_throughput_in": "Bytes published per second.",
    "msg_average_Size": "Average bytes of a published message in the last window.",
}
_COMPACTIONS = {
    "removed_event_count": "Messages that compactions removed.",
    "succeed_count": "Compactions that succeeded since the topic was loaded.",
    "failed_count": "Compactions that failed since the topic was loaded.",
    "duration_time_in_mills": "Duration of the last compaction in milliseconds.",
    "read_throughput": "Bytes read per second while compactions ran.",
    "write_throughput": "Bytes written per second while compactions ran.",
    "compacted_entries_count": "Entries of the compacted ledger.",
    "compacted_entries_size": "Bytes of the compacted ledger.",
}
_LEDGERS = {
    "AddEntryBytesRate": "Bytes stored per second.",
    "AddEntryWithReplicasBytesRate": "Bytes stored per second, with replicas: entries are stored once.",
    "AddEntryMessagesRate": "Entries stored per second.",
    "AddEntrySucceed": "Entries stored in the last window.",
    "AddEntryErrors": "Entries in the last window that could not be stored.",
    "ReadEntriesBytesRate": "Bytes read per second.",
    "ReadEntriesRate": "Entries read per second.",
    "ReadEntriesSucceeded": "Entries read in the last window.",
    "ReadEntriesErrors": "Reads of the last window that failed.",
    "ReadEntriesOpsCacheMissesRate": "Entries read per second that were not in memory.",
    "MarkDeleteRate": "Changes of cursors per second.",
    "NumberOfMessagesInBacklog": "Entries that are not acknowledged.",
    "StoredMessagesSize": "Bytes stored.",
    "AddEntryLatencyBuckets": "Entries per second by latency in milliseconds; the label quantile holds the bounds of a bucket.",
    "AddEntryLatencyBuckets_OVERFLOW": "Entries per second above the highest bound.",
    "LedgerAddEntryLatencyBuckets": "The same as pulsar_ml_AddEntryLatencyBuckets.",
    "LedgerAddEntryLatencyBuckets_OVERFLOW": "Entries per second above the highest bound.",
    "LedgerSwitchLatencyBuckets": "Appends that waited for a new ledger: always 0.",
    "LedgerSwitchLatencyBuckets_OVERFLOW": "Appends above the highest bound that waited for a new ledger: always 0.",
    "EntrySizeBuckets": "Entries per second by size in bytes; the label quantile holds the bounds of a bucket.",
    "EntrySizeBuckets_OVERFLOW": "Entries per second above the highest bound.",
    "cursor_persistLedgerSucceed": "Cursor records stored.",
    "cursor_persistLedgerErrors": "Cursor records that could not be stored.",
    "cursor_persistZookeeperSucceed": "Cursor records stored in ZooKeeper: always 0.",
    "cursor_persistZookeeperErrors": "Cursor records that could not be stored in ZooKeeper: always 0.",
    "cursor_nonContiguousDeletedMessagesRange": "Acknowledged ranges behind the mark-delete position.",
    "cursor_writeLedgerSize": "Bytes of the cursor records stored.",
    "cursor_writeLedgerLogicalSize": "Bytes of the cursor records stored, without copies.",
    "cursor_readLedgerSize": "Bytes of cursor records read while the cursor is open: always 0.",
    "count": "Loaded managed ledgers.",
    "reads_inflight_bytes": "Memory of entries that are being read or were read ahead for subscriptions.",
    "reads_available_inflight_bytes": "Memory that reads may take in addition.",
    "cache_used_size": "Bytes of the cache of recent entries.",
    "cache_entries": "Entries in the cache.",
    "cache_inserted_entries_total": "Entries inserted into the cache.",
    "cache_evicted_entries_total": "Entries evicted from the cache.",
    "cache_evictions": "Evictions of the last window.",
    "cache_hits_rate": "Entries per second that readers found in memory.",
    "cache_hits_throughput": "Bytes per second that readers found in memory.",
    "cache_misses_rate": "Entries per second that readers did not find in memory.",
    "cache_misses_throughput": "Bytes per second that readers did not find in memory.",
}
_BUNDLES = {
    "msg_rate_in": "Messages published per second.",
    "msg_rate_out": "Messages delivered per second.",
    "msg_throughput_in": "Bytes published per second.",
    "msg_throughput_out": "Bytes delivered per second.",
    "topics_count": "Loaded topics of the bundle.",
    "consumer_count": "Consumers of the bundle.",
    "producer_count": "Producers of the bundle.",
}
_BROKER = {
    "topics_count": "Loaded topics.",
    "subscriptions_count": "Subscriptions of the loaded topics.",
    "producers_count": "Connected producers.",
    "consumers_count": "Connected consumers.",
    "rate_in": "Messages published per second.",
    "rate_out": "Messages delivered per second.",
    "throughput_in": "Bytes published per second.",
    "throughput_out": "Bytes delivered per second.",
    "storage_size": "Bytes stored.",
    "storage_logical_size": "Bytes stored, without copies.",
    "storage_write_rate": "Entries stored per second.",
    "storage_read_rate": "Entries read per second.",
    "storage_read_cache_misses_rate": "Entries read per second that were not in memory.",
    "msg_backlog": "Entries that are not acknowledged, summed over all subscriptions.",
    "in_bytes_total": "Bytes published to the loaded topics, by whether the topic is a system topic.",
    "out_bytes_total": "Bytes delivered from the loaded topics, by whether the topic is a system topic.",
    "storage_backlog_quota_exceeded_evictions_total": "Checks in which a backlog quota evicted messages, by quota type.",
    "publish_latency": "Milliseconds from the arrival of a message to its receipt; quantiles of the last window.",
    "throttled_connections": "Connections that are not read because too much is waiting to be stored.",
    "pending_bytes_to_dispatch": "Bytes read and not yet handed to consumers: always 0.",
    "lookup": "Milliseconds until a lookup was answered; quantiles of the last window.",
    "lookup_answers_total": "Lookups that succeeded.",
    "lookup_failures_total": "Lookups that failed.",
    "lookup_redirects_total": "Lookups that were redirected to another broker.",
    "lookup_pending_requests": "Lookups and requests for partitions under way.",
    "topic_load_pending_requests": "Topics that are being loaded.",
}
_TOPIC_LOADS = {
    "times": "Milliseconds until a topic was loaded; quantiles of the last window.",
    "time_mean_ms": "Mean milliseconds of a topic load in the last window; NaN without one.",
    **{
        f"time_{name}_ms": f"Milliseconds of a topic load in the last window, {text}; NaN without one."
        for name, text in {
            "median": "median",
            "75percentile": "75th percentile",
            "95percentile": "95th percentile",
            "99_percentile": "99th percentile",
            "99_9_percentile": "99.9th percentile",
            "99_99_percentile": "99.99th percentile",
        }.items()
    },
    "rate_s": "Topics loaded per second.",
    "failed_count": "Topic loads of the last window that failed.",
}
_SCHEMAS = {
    **{
        name: text
        for operation, what in {"get": "reads", "put": "registrations", "del": "deletions"}.items()
        for name, text in (
            (f"{operation}_ops_latency", f"Milliseconds of schema {what}; quantiles since the start."),
            (f"{operation}_ops_failed_total", f"Schema {what} that failed."),
        )
    },
    "compatible_total": "Schemas that were compatible with the existing versions.",
    "incompatible_total": "Schemas that were incompatible with the existing versions.",
}
_GROUPS = {
    "calculated_messages_quota_total": "Messages per second that the resource group may use; 0 or less: no limit.",
    "calculated_bytes_quota_total": "Bytes per second that the resource group may use; 0 or less: no limit.",
    "messages_used_total": "Messages that the topics of the resource group used.",
    "bytes_used_total": "Bytes that the topics of the resource group used.",
    "updates_total": "Changes of the limits of the resource group.",
    "namespace_registers_total": "Namespaces that joined the resource group.",
    "namespace_unregisters_total": "Namespaces that left the resource group.",
}
_TXN = {
    "active_count": "Open transactions.",
    "created_total": "Transactions created.",
    "committed_total": "Transactions committed.",
    "aborted_total": "Transactions aborted, time-outs included.",
    "timeout_total": "Transactions aborted because of their time-out.",
    "append_log_total": "Records appended to the transaction log.",
    "tb_active_total": "Open transactions with messages in the topic.",
    "tb_committed_total": "Transactions with messages in the topic that were committed since it was loaded.",
    "tb_aborted_total": "Transactions with messages in the topic that were aborted since it was loaded.",
    **_buckets("execution_latency", "transactions by their time from open to ended", _txn_buckets(_TXN_BOUNDS_MS)),
}
_OF_PULSAR = {
    "version_info": "Version of the broker; always 1.",
    "active_connections": "Open connections of clients.",
    "connection_created_total_count": "Connections of clients created.",
    "connection_create_success_count": "Connections of clients that completed their handshake.",
    "connection_create_fail_count": "Connections of clients that failed in their handshake.",
    "connection_closed_total_count": "Connections of clients closed.",
    "health": "Result of the periodic health check: 1 healthy, 0 not, -1 without a check.",
    "lb_cpu_usage": "CPU usage of the machine or control group in percent.",
    "lb_memory_usage": "Resident memory in percent of the memory of the machine or control group.",
    "lb_directMemory_usage": "Bytes of messages in memory in percent of their limit.",
    "lb_bandwidth_in_usage": "Received network traffic in percent of the link speed.",
    "lb_bandwidth_out_usage": "Sent network traffic in percent of the link speed.",
    "metadata_store_ops_latency_ms": "Milliseconds of operations of the metadata store, by operation and result.",
    "metadata_store_put_bytes_total": "Bytes written to the metadata store.",
}
_OWN_SUBSCRIPTIONS = {
    "look_ahead_bytes": "Memory of entries read ahead that wait for their consumer (Key_Shared, chunks on Shared).",
    "hashes_set_aside": "Parked hashes of a Key_Shared subscription: the look-ahead had no capacity for more of their entries.",
    "draining_hashes": "Hashes of a Key_Shared subscription that wait until their previous consumer has acknowledged.",
    "oldest_unacked_age_seconds": "Age of the first unacknowledged message; -1 without one or while unknown.",
    "backlog_bytes": "Estimated bytes behind the mark-delete position.",
}
_OWN_TXN = {
    "ending": "Transactions that are being committed or aborted.",
    "waiting": "Requests that wait for capacity of the coordinator.",
    "log_entries": "Records that the transaction log keeps.",
    "size_bytes": "Memory of the open transactions.",
    "sinks": "Sinks whose last batch is remembered.",
    "sink_batches_total": "Batches of sinks that were committed.",
    "sink_batches_repeated_total": "Calls for a batch of a sink that had been committed before.",
}
_OWN_MEMORY = {
    "limit_bytes": "Memory that the process shall stay below (brokerMemoryLimitMB).",
    "used_bytes": "Memory that the part uses.",
    "bound_bytes": "Memory that the part may use.",
    "ahead_bytes": "Memory of the part that it would give up for other parts.",
    "waiting": "Requests that wait for memory of the part, and connections or subscriptions stopped by it.",
    "longest_wait_seconds": "Duration of the longest present wait for memory of the part.",
    "waits_total": "Waits for memory of the part.",
    "gave_way_total": "How often the part dropped what it had read ahead for other parts.",
}
_OWN_HTTP = {
    "connections": "Open HTTP connections.",
    "refused_connections": "HTTP connections refused, or closed in favour of others, since the start.",
    "waiting_requests": "HTTP requests that wait for a limit.",
    "request_bytes": "Bytes of HTTP request bodies in memory.",
    "response_bytes": "Bytes of HTTP responses in memory.",
    "viewed_bytes": "Bytes of messages in memory that are shown over HTTP.",
    "bulk_reads": "Bulk reads under way.",
    "bulk_reads_waiting": "Bulk reads that wait for their slot.",
    "bulk_read_bytes": "Bytes sent by bulk reads since the start.",
    "bulk_read_entries": "Entries of complete bulk reads since the start.",
    "bulk_read_throttled": "Waits of bulk reads for the rate limit of their namespace since the start.",
    "bulk_read_refused": "Bulk reads refused since the start because too many waited.",
    "read_leases": "Leases of readers that protect ledgers from being trimmed.",
}
_OWN_STORE = {
    "journal_batches": "Batches written to the journal since the start.",
    "journal_bytes": "Bytes written to the journal since the start.",
    "journal_entries": "Entries written to the journal since the start.",
    "journal_sync_seconds": "Seconds spent on durable journal writes since the start.",
    "journal_refused_batches": "Journal batches refused since the start.",
    "refused_entries": "Entries refused since the start because the disk is full.",
    "submit_to_completion_seconds": "Seconds from the oldest append of a batch to its completion, summed since the start.",
    "submit_to_completion_max_seconds": "The longest time from the oldest append of a batch to its completion.",
    "checkpoints": "Checkpoints since the start.",
    "checkpoint_seconds": "Seconds spent on checkpoints since the start.",
    "checkpoint_retries": "Checkpoints repeated since the start after a failure.",
    "checkpoint_bytes": "Bytes written by checkpoints since the start.",
    "segment_reads": "Reads of segment files since the start.",
    "damaged_segments": "Segment files with damage outside of an entry.",
    "damaged_cursors": "Cursors whose stored state is damaged, so that their topics cannot be loaded.",
    "recovered_entries": "Entries recovered from the journal at the start.",
    "recovered_bytes": "Bytes recovered from the journal at the start.",
    "journal_cut_bytes": "Bytes of the torn end of the journal that the start has cut.",
    "dropped_entries_of_deleted_ledgers": "Recovered entries that were dropped because their ledger is deleted.",
    "recovery_seconds": "Duration of the recovery at the start.",
    "journal_queue_depth": "Runs that wait to be written to the journal.",
    "held_runs": "Runs that wait for a checkpoint or for capacity in the queue of the journal.",
    "journal_live_bytes": "Bytes of the journal that await a checkpoint.",
    "live_ledgers": "Ledgers that the store knows.",
    "free_bytes": "Free bytes of the file system of the data directory.",
    "file_system_bytes": "Size of the file system of the data directory; 0: unknown.",
    "publishing_refused": "1 while publishing is refused because the disk is full.",
    "journal_batch_bytes": "Bytes of a journal batch.",
    "journal_batch_entries": "Entries of a journal batch.",
    "journal_sync_duration_seconds": "Duration of a durable journal write.",
}
_OWN = {
    "ready": "1 while GET /ready answers ok: started, not stopping, with descriptors and disk space.",
    "tls_certificate_expiry_timestamp_seconds": "Time at which the certificate of the TLS listeners expires, in s since 1970.",
    "connections_limit": "Connections of clients that file descriptors allow (fileDescriptorsReserve).",
    "connections_refused_total": "Connections of clients closed at once because of pybroker_connections_limit.",
    "client_refusals_total": "Refused commands of clients of the binary protocol, by command and cause.",
    "displaced_connections_total": "Connections closed in favour of others before they had sent CONNECT.",
    "cache_hit_entries_total": "Entries that reads found in the cache.",
    "cache_missed_reads_total": "Reads that found nothing in the cache.",
    "loop_lag_seconds": "Lag of the event loop at its last tick.",
    "loop_lag_max_seconds": "Longest lag of the event loop.",
    "loop_tick_lag_seconds": "Lag of the event loop at each tick.",
    "loop_starved_total": "How often the event loop was late by more than eventLoopWatchdogMs while no callback held it.",
    "gc_pauses_seconds": "Duration of the pauses of Python's garbage collector.",
    "gc_full_collections_total": "Collections in which the garbage collector visited all objects.",
    "pending_publish_bytes": "Bytes published and not stored yet.",
    "pump_queue_depth": "Subscriptions that wait for their slot to dispatch.",
    "waiting_subscription_requests": "Requests that wait for earlier requests on the same subscription.",
    "late_subscription_requests_total": "Requests on subscriptions that waited until their deadline.",
    "refused_subscription_requests_total": "Requests on subscriptions refused because too many waited.",
    "waiting_password_checks": "Passwords that wait to be checked.",
    "waiting_topic_requests": "Requests that wait until a topic or its namespace is loaded, closed, created, changed or deleted.",
    "late_topic_requests_total": "Requests on topics that waited until their deadline.",
    "refused_topic_requests_total": "Requests on topics refused because too many waited.",
    "bugs_total": "Unexpected failures; each is in the log with its stack.",
    "skipped_damaged_entries_total": "Damaged entries skipped for a subscription because of autoSkipNonRecoverableData.",
    "storage_damaged_entries_total": "Damaged entries that readers met, each counted once.",
}
HELP: dict[str, str] = {
    **_prefixed("pulsar_", {**_TOPICS, **_OF_PULSAR}),
    **_prefixed("pulsar_subscription_", _SUBSCRIPTIONS),
    **_prefixed("pulsar_consumer_", _CONSUMERS),
    **_prefixed("pulsar_producer_", _PRODUCERS),
    **_prefixed("pulsar_compaction_", _COMPACTIONS),
    **_buckets("pulsar_compaction_latency", "entries written by compactions, by latency", _BUCKETS_MS, "microseconds"),
    **_buckets("pulsar_storage_write_latency", "entries of the last window, by latency", _BUCKETS_MS),
    **_buckets("pulsar_storage_ledger_write_latency", "entries of the last window, by latency", _BUCKETS_MS),
    **_buckets("pulsar_entry_size", "entries of the last window, by size", _BUCKETS_BYTES, "bytes"),
    **_prefixed("pulsar_ml_", _LEDGERS),
    **_prefixed("pulsar_bundle_", _BUNDLES),
    **_prefixed("pulsar_broker_", _BROKER),
    **_prefixed("pulsar_topic_load_", _TOPIC_LOADS),
    "topic_load_failed_total": "Topic loads that failed.",
    **_prefixed("pulsar_schema_", _SCHEMAS),
    **_prefixed("pulsar_resource_group_", _GROUPS),
    **_prefixed("pulsar_txn_", _TXN),
    **_prefixed("pybroker_", _OWN),
    **_prefixed("pybroker_subscription_", _OWN_SUBSCRIPTIONS),
    **_prefixed("pybroker_txn_", _OWN_TXN),
    **_prefixed("pybroker_memory_", _OWN_MEMORY),
    **_prefixed("pybroker_http_", _OWN_HTTP),
    **_prefixed("pybroker_store_", _OWN_STORE),
}
