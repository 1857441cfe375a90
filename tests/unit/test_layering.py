"""Imports inside the package point in one direction, form no cycle, and rules import nothing that performs.

Read from the source with `ast`, so a module is checked without being run. Imports inside functions count, and so do those
under `if TYPE_CHECKING:` wherever it is asked who knows of whom; only what cannot be run without what is told without them.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import count
from pathlib import Path

import pytest
from tests.support.import_circles import circles
from tests.support.source_trees import source_tree

pytestmark = pytest.mark.usefixtures("trees_go_with_their_module")
SOURCE = Path(__file__).resolve().parents[2] / "src"

VALUES = ("errors", "model")
ENVIRONMENT = (*VALUES, "config", "waiting", "memory", "runtime")
STORES = (*ENVIRONMENT, "storage_format", "disk", "ledgers", "local_store", "metadata")
SERVICES = ("managed_ledger", "backup", "client", "auth", "cluster", "schema", "transactions", "compaction")
# The schema modules that read definitions, without a registry.
SCHEMA_RULES = ("schema.avro", "schema.key_value", "schema.protobuf_native", "schema.schema_data")
# The wire modules that describe stored entries.
ENTRY_RULES = (
    "core entry_columns entry_metadata transaction_metadata broker_entry_metadata entry_builder compression entry_view"
    " pulsar_api_pb2"
)
ENTRIES = tuple(f"wire.{name}" for name in ENTRY_RULES.split())
BROKER = (*STORES, "version", "process", *SERVICES, "dispatch", *ENTRIES)
# The analytics packages. The broker and its edges never import them; these are the only other packages that do.
ANALYTICS = ("columns", "reading", "spark", "lake", "pipelines")
IMPORTERS_OF_ANALYTICS = ("cli",)

# The packages in the order of the layers, and the packages and modules that each may import besides itself: only earlier ones.
# Imports by a type checker alone count.
ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "version": (),
    "model": ("errors",),
    "config": ("errors",),
    "waiting": VALUES,
    "memory": (*VALUES, "waiting"),
    "runtime": (*VALUES, "config", "waiting", "memory"),
    "process": ("runtime", "model"),
    "storage_format": VALUES,
    "disk": (*VALUES, "runtime", "storage_format.marker_layout"),
    "wire": VALUES,
    "zookeeper": ("runtime",),
    "bookkeeper": ("errors", "runtime", "wire", "zookeeper"),
    "dispatch": VALUES,
    "ledgers": (*VALUES, "storage_format"),
    "local_store": (*ENVIRONMENT, "storage_format", "disk", "ledgers"),
    "metadata": (*ENVIRONMENT, "storage_format.marker_layout", "disk", "zookeeper"),
    "managed_ledger": (*ENVIRONMENT, "ledgers", "metadata"),
    "schema": (*ENVIRONMENT, "metadata"),
    "bookkeeper_store": (
        *ENVIRONMENT,
        "wire",
        "zookeeper",
        "bookkeeper",
        "ledgers",
        "metadata",
        "managed_ledger",
        "schema",
    ),
    "backup": (*STORES, "version"),
    "auth": (*ENVIRONMENT, "metadata"),
    "encryption": (*VALUES, "config", "wire", "auth.plugins"),
    "client": (*ENVIRONMENT, "wire", "encryption"),
    "cluster": (*ENVIRONMENT, "metadata", "client"),
    "transactions": (*ENVIRONMENT, "ledgers", "managed_ledger", "metadata"),
    "compaction": (*ENVIRONMENT, "ledgers", "managed_ledger", "wire"),
    "broker": BROKER,
    "server": (*BROKER, "broker", "wire"),
    "admin": (*BROKER, "broker"),
    "websocket": (*BROKER, "broker", "wire", "encryption", "admin"),
    "columns": (*VALUES, "storage_format", "wire", "encryption", *SCHEMA_RULES),
    "reading": (
        *VALUES,
        "runtime.logs",
        "storage_format",
        "wire",
        "encryption",
        *SCHEMA_RULES,
        "schema.key_value_text",
        "columns",
        "client",
    ),
    "spark": (*VALUES, "runtime.logs", "wire", "encryption", "columns", "client", "reading"),
    "pyspark_pulsar": ("spark",),
    "lake": (*VALUES, "runtime.logs", "columns", "client", "reading"),
    "pipelines": (
        *VALUES,
        "runtime.logs",
        "dispatch.consumer_state",
        "dispatch.selectors",
        "wire",
        *ANALYTICS[:-1],
        "client",
    ),
    "configuration_check": (
        *VALUES,
        "config",
        "encryption",
        "auth",
        "cluster",
        "metadata",
        "runtime.proxied_port",
        "server.bind_addresses",
    ),
    "tools": (
        *STORES,
        "zookeeper",
        "bookkeeper",
        "bookkeeper_store",
        "managed_ledger",
        "dispatch.delayed.delayed_record",
        "broker.transactions.transaction_recovery",
        "broker.transactions.transaction_buffer",
        "transactions",
        "wire",
        "bookkeeper_store",
        "compaction",
        "schema",
    ),
    "broker_assembly": (*STORES, "managed_ledger", "schema.schema_storage", "wire", "broker"),
    "broker_process": (
        *BROKER,
        "bookkeeper_store",
        "wire",
        "broker",
        "server",
        "admin",
        "websocket",
        "broker_assembly",
    ),
    "embedding": (
        *STORES,
        "wire",
        "dispatch",
        "broker.delivery.consumer",
        "broker.publishing.publish_checks",
        "broker.context.publish_refusals",
        "server",
        "broker_assembly",
        "broker_process",
    ),
    "testing": ("client", "embedding"),
    "cli": (
        *STORES,
        "version",
        *SERVICES,
        "wire",
        "reading",
        "configuration_check",
        "tools",
        "pipelines",
        "broker_process",
    ),
    "__main__": ("cli",),
}

# The folders of a part, in the same way: what the modules of each may know of the part besides their own folder, if only by a
# type. What is named here by itself is a module; `...` stands for all of the part.
FOLDERS: dict[str, dict[str, tuple[str, ...]]] = {
    "broker": {
        "entry_filters": (),
        "limits": (),
        "context": ("entry_filters", "limits"),
        "publishing": ("limits", "context"),
        "delivery": ("entry_filters", "limits", "context"),
        "transactions": ("limits", "context", "publishing"),
        "topic": ("limits", "context", "publishing", "delivery", "transactions"),
        "lifecycle": ("context", "publishing", "delivery", "transactions", "topic"),
        "cluster": ("context", "lifecycle"),
        "policies": ("entry_filters", "context", "lifecycle"),
        "maintenance": ("entry_filters", "context", "delivery", "topic", "lifecycle"),
        "inspection": ("context", "delivery", "topic"),
        "snapshots": ("publishing", "delivery", "topic", "transactions"),
        "explain": (
            "limits",
            "context",
            "publishing",
            "delivery",
            "transactions",
            "topic",
            "lifecycle",
            "inspection",
            "snapshots",
        ),
        "service": ("...",),
    },
    "admin": {
        "slices": (),
        "time_text": (),
        "calls": (),
        "http": ("calls",),
        "stats": ("time_text", "calls"),
        "metrics": ("slices", "calls", "stats"),
        "console": ("slices", "calls", "stats"),
        "policies": ("calls",),
        "entries": ("time_text", "calls", "http.file_sending"),
        "namespaces": ("slices", "calls", "policies.policy_values", "stats.bundle_load", "stats.rate_sampler"),
        "topics": ("calls", "stats", "namespaces"),
        "brokers": ("calls", "namespaces.bundle_owners"),
        "transactions": ("time_text", "calls", "stats.managed_ledger_stats"),
        "inspection": ("slices", "calls"),
        "explain": ("slices", "calls", "inspection.common_parameters"),
        "server": ("...",),
    },
}

# Modules that decide and never perform; a name stands for everything below it.
PURE = (
    "version",
    "local_store.segments.ledger_location",
    "errors",
    "config.broker_config",
    "config.setting_types",
    "model",
    "waiting.fair_queue",
    "waiting.fair_shares",
    "waiting.lock_table",
    "waiting.request_holder",
    "waiting.slots",
    "waiting.token_bucket",
    "memory.memory_budget",
    "memory.memory_parts",
    "memory.memory_shares",
    "wire",
    "dispatch",
    "config.ledger_store_kind",
    "cluster.load_balance",
    "cluster.membership.clock_differences",
    "cluster.membership.leader_rules",
    "cluster.membership.membership_report",
    "cluster.ownership.assignment",
    "cluster.ownership.held_bundles",
    "cluster.ownership.namespace_bundle",
    "admin.calls.served_at",
    "broker.explain.membership",
    "broker.explain.ownership",
    "bookkeeper.append_state",
    "bookkeeper.bookie_choice",
    "bookkeeper.bookkeeper_pb2",
    "bookkeeper.change_pacing",
    "bookkeeper.protocol.entry_format",
    "bookkeeper.errors",
    "bookkeeper.inspection.orphan_rule",
    "bookkeeper.protocol.frames",
    "bookkeeper.ledger_metadata",
    "bookkeeper.ledger_paths",
    "bookkeeper.protocol.messages_v3",
    "bookkeeper.metadata_store",
    "bookkeeper.options",
    "bookkeeper.quorums",
    "bookkeeper_store.documents",
    "bookkeeper_store.store_errors",
    "zookeeper.addresses",
    "zookeeper.digest_md5",
    "zookeeper.errors",
    "zookeeper.jaas",
    "zookeeper.jute",
    "zookeeper.operations",
    "zookeeper.session",
    "ledgers.bookie_report",
    "ledgers.ledger_store",  # an interface and the values it speaks in
    "ledgers.cursor_store",
    "ledgers.known_data",
    "ledgers.ledger_properties",
    "storage_format",
    "local_store.journal.journal_recovery",
    "tools.sqlite_log",
    "metadata.document_layout",
    "metadata.metadata_paths",
    "metadata.session_report",
    "managed_ledger.ledger_list",
    "managed_ledger.cursor_state",
    "managed_ledger.cache.entry_cache",
    "managed_ledger.cache.recent_reads",
    "managed_ledger.cursor_record",
    "managed_ledger.info.managed_ledger_info",
    "managed_ledger.info.stored_documents",
    "managed_ledger.ledger_listener",
    "managed_ledger.trimmed_ledgers",
    "managed_ledger.state_size_limit",
    "managed_ledger.retention",
    "managed_ledger.rollover",
    "managed_ledger.max_read_position",
    "managed_ledger.pending_transaction_acks",
    "compaction.messages",
    "compaction.stored_entry",
    "compaction.survivors",
    "transactions.records",
    "transactions.sinks",
    "transactions.coordinator_state",
    "transactions.log_positions",
    "transactions.timeouts",
    "schema.avro",
    "schema.compatibility",
    "schema.history",
    "schema.identity",
    "schema.json_text",
    "schema.key_value",
    "schema.key_value_text",
    "schema.protobuf_native",
    "schema.schema_data",
    "schema.validation",
    "encryption.encryption_errors",
    "client.addresses",
    "client.reconnect_delay",
    "client.failures",
    "client.consuming.flow_window",
    "client.frames",
    "client.message",
    "client.producing.pending_sends",
    "cluster.bundles",
    "cluster.split_algorithms",
    "broker.publishing.deduplication",
    "broker.publishing.producer_access",
    "broker.topic.backlog_rules",
    "broker.delivery.parked_entries",
    "broker.transactions.transaction_buffer",
    "broker.cluster.java_snapshot_format",
    "broker.context.default_policies",
    "broker.limits.dispatch_rate_limit",
    "broker.publishing.publish_checks",
    "broker.context.publish_refusals",
    "broker.limits.rate_buckets",
    "broker.context.read_leases",
    "broker.limits.subscribe_rate_limit",
    "broker.delivery.dispatch_stall",
    "broker.delivery.entry_kinds",
    "broker.delivery.markers",
    "broker.delivery.stages",
    "broker.snapshots",
    "broker.explain",
    "broker.inspection.hashes",
    "broker.inspection.pages",
    "broker.lifecycle.watched_topics",
    "broker.limits.broker_unacked_limit",
    "reading.cutting",
    "reading.positions",
    "reading.quantities",
    "spark.reader.admission",
    "spark.reader.offsets",
    "spark.option_text",
    "admin.stats.topic_stats",
    "admin.stats.transaction_stats",
    "admin.stats.partitioned_stats",
    "admin.stats.bundle_load",
    "admin.metrics.help_texts",
    "admin.metrics.bookkeeper_metrics",
    "admin.metrics.exposition_text",
    "admin.metrics.ledger_metrics",
    "admin.metrics.otlp_document",
    "admin.metrics.schema_metrics",
    "admin.explain.headline",
    "admin.time_text",
    "admin.calls.message_id",
    "admin.calls.route_paths",
    "admin.calls.queries",
    "admin.entries.message_view",
    "admin.entries.rest_message",
    "admin.stats.internal_info",
    "admin.http.request_limit",
    "admin.http.strict_head",
    "auth.provider_names",
    "auth.plugins",
    "auth.known_superusers",
    "auth.openid.pending_login",
    "auth.token_claims",
    "config.dynamic",
    "config.only_in_pulsar",
    "runtime.repeated_events",
    "server.handler",
    "server.handlers.authorization_errors",
    "server.outbox_shares",
    "server.handlers.request_limits",
    "server.read_pauses",
    "runtime.proxy_protocol",
    "auth.proxied_role",
    "local_store.checkpoint.cursor_registry",
    "local_store.deferred_appends",
    "local_store.journal.journal_batcher",
    "local_store.journal.journal_items",
    "disk.shortage",
    "ledgers.live_ledger",
    "local_store.store_options",
    "local_store.store_counters",
    "tools.copying_topics.position_map",
    "tools.repair_plan",
    "tools.items",
    "tools.journal_header",
    "tools.sqlite_pages",
    "tools.transaction_ends",
    "websocket.frame_compression",
    "websocket.json_forms",
    "websocket.publish_latency",
    "websocket.unacknowledged",
    "cli.command_table",
    "cli.parsed_arguments",
    "cli.message_text",
    "cli.nearest_names",
    "cli.text_tables",
)
THAT_PERFORM = (
    "asyncio concurrent fcntl http io logging mmap multiprocessing os pathlib queue random resource secrets select"
    " selectors shutil signal socket sqlite3 ssl subprocess sys sysconfig tempfile threading time uvloop"
)
IMPURE_IMPORTS = frozenset(THAT_PERFORM.split())
READ_WHEN_IMPORTED = {"wire.core": {"os"}}
"""A variable of the environment selects pure Python when the module is imported."""
# Libraries of the edges: who imports them performs.
EDGES = frozenset({"starlette", "uvicorn", "prometheus_client", "cryptography", "jwt", "pulsar", "pyspark"})
MAX_MODULES_OF_A_FOLDER = 20
MAX_MODULES_AT_THE_TOP = 8
NOT_MODULES = frozenset(
    {
        "__init__",
        "__main__",
        "pulsar_api_pb2",
        "metadata_head_pb2",
        "bookkeeper_pb2",
        "ml_data_formats_pb2",
        "schema_storage_pb2",
    }
)
# Parts of the list of layers that are still to come.
NOT_YET: frozenset[str] = frozenset()
# What stands beside the broker and need not be held to that.
BESIDE = ("columns", "reading", "client", "spark", "lake", "pipelines", "pyspark_pulsar", "testing")
IMPURE_CALLS = frozenset({"input", "open", "print"})

# Who asks the machine itself for time, chance, threads or sockets; everybody else in the broker is given them.
WORLD = frozenset(
    {
        "random.SystemRandom",
        "secrets",
        "socket.create_server",
        "socket.socket",
        "threading.Thread",
        "threading.Timer",
        "time",
        "uuid",
        "concurrent.futures.ThreadPoolExecutor",
        "concurrent.futures.ProcessPoolExecutor",
    }
)
AT_THE_EDGE: dict[str, set[str]] = {
    "runtime.clock": {"time"},
    "runtime.network": {"socket.create_server", "socket.socket"},
    "runtime.proxied_port": {"socket.socket"},
    "admin.http.file_sending": {"socket.socket"},  # of a connection that there is
    "runtime.threads": {"concurrent.futures.ThreadPoolExecutor", "threading.Thread"},
    "embedding.thread": {"threading.Thread"},  # with the loop on it
    "runtime.runtime": {"random.SystemRandom"},
    "local_store.store_environment": {"random.SystemRandom"},
    "runtime.logs": {"time"},  # the time of a record is that of its writing
    "process.watchdog": {"time"},  # asks the operating system why the loop stood still
    "process.service_manager": {"time", "socket.socket"},  # the socket and the clock of the system's service manager
    "zookeeper.client": {"time"},  # a session's deadline also counts while the machine is suspended
    "auth.basic_provider": {"secrets"},  # a key that lasts as long as the process
}

# Circles of modules that know of each other, if only by a type. They may only get smaller; what stays has its reason in
# docs/contributing/architecture.md.
CIRCLES: tuple[frozenset[str], ...] = (
    frozenset({"broker.delivery.consumer", "broker.delivery.subscription_base"}),
    frozenset({"managed_ledger.managed_cursor", "managed_ledger.managed_ledger"}),
    frozenset({"server.connection", "server.server_context"}),
)


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def tree_of(name: str) -> ast.Module:
    return source_tree(MODULES[name])


def is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    return ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for otherwise in child.orelse:
                yield otherwise
                yield from running_nodes(otherwise)
        else:
            yield child
            yield from running_nodes(child)


def imported_modules(tree: ast.AST, *, with_types: bool = False) -> set[str]:
    """Full names of the modules that a tree imports, ours resolved to the module that is meant."""
    imported: set[str] = set()
    for node in ast.walk(tree) if with_types else running_nodes(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                imported.add(whole if whole in MODULES else node.module)
    return imported


@cache
def imports_of(name: str, *, with_types: bool = False) -> set[str]:
    return imported_modules(tree_of(name), with_types=with_types)


@cache
def our_imports(name: str) -> set[str]:
    """Modules of the package that a module imports; the package itself holds only its version."""
    return {module for module in imports_of(name) if module.startswith("pybroker.")}


@cache
def known_modules(name: str) -> set[str]:
    """As `our_imports`, with those that only a type checker reads."""
    imported = imports_of(name, with_types=True)
    return {module for module in imported if module.startswith("pybroker.") and module != name}


def inner(name: str) -> str:
    return name.removeprefix("pybroker.")


def is_below(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


INNER_MODULES = [name for name in MODULES if name != "pybroker"]
PURE_MODULES = [name for name in INNER_MODULES if is_below(inner(name), PURE)]


def test_the_list_of_layers_points_in_one_direction() -> None:
    seen: set[str] = set()
    for part, allowed in ALLOWED.items():
        assert {name.split(".")[0] for name in allowed} <= seen, part
        seen.add(part)


def test_a_module_imports_only_what_its_layer_may() -> None:
    wrong = {}
    for name in INNER_MODULES:
        part = inner(name).split(".")[0]
        assert part in ALLOWED, f"{part} has no place in the list of layers"
        may = (part, *ALLOWED[part])
        wrong[name] = {module for module in known_modules(name) if not is_below(inner(module), may)}
    assert not {name: modules for name, modules in wrong.items() if modules}


def test_the_folders_of_a_part_know_of_each_other_in_one_direction() -> None:
    wrong = {}
    for part, folders in FOLDERS.items():
        seen: set[str] = {"..."}
        for folder, allowed in folders.items():
            assert {name.split(".")[0] if name != "..." else name for name in allowed} <= seen, f"{part}.{folder}"
            seen.add(folder)
        for name in INNER_MODULES:
            if not is_below(inner(name), (part,)) or inner(name) == part:
                continue
            folder = inner(name).split(".")[1]
            assert folder in folders, f"{part}.{folder} has no place in the list of folders"
            may = tuple(f"{part}.{other}" for other in (folder, *folders[folder]))
            known = {module for module in known_modules(name) if is_below(inner(module), (part,))}
            if "..." not in folders[folder]:
                wrong[name] = {module for module in known if not is_below(inner(module), may)}
    assert not {name: modules for name, modules in wrong.items() if modules}


def test_folders_import_each_other_in_one_direction() -> None:
    """Of each package: its folders, and each module that lies beside them. Imports by a type checker alone count."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for name in INNER_MODULES:
        for imported in known_modules(name):
            parts, other = name.split("."), imported.split(".")
            depth = next(depth for depth in count() if parts[: depth + 1] != other[: depth + 1])
            if depth < min(len(parts), len(other)):
                graph = graphs.setdefault(".".join(parts[:depth]), {})
                graph.setdefault(parts[depth], set()).add(other[depth])
                graph.setdefault(other[depth], set())
    found = {parent: circles(graph) for parent, graph in graphs.items()}
    pairs = [frozenset(name.rpartition(".")[2] for name in pair) for pair in CIRCLES]
    assert not {
        parent: grown for parent, all_of in found.items() if (grown := [one for one in all_of if one not in pairs])
    }


def test_only_the_command_line_imports_the_analytics_packages() -> None:
    wrong = {}
    for name in INNER_MODULES:
        part = inner(name).split(".")[0]
        if part not in (*ANALYTICS, "pyspark_pulsar", *IMPORTERS_OF_ANALYTICS):
            wrong[name] = {module for module in known_modules(name) if is_below(inner(module), ANALYTICS)}
    assert not {name: modules for name, modules in wrong.items() if modules}


def test_a_folder_has_at_most_20_modules() -> None:
    modules = Counter(path.parent for path in MODULES.values() if path.stem not in NOT_MODULES)
    assert not {str(folder): number for folder, number in modules.items() if number > MAX_MODULES_OF_A_FOLDER}
    assert modules[SOURCE / "pybroker"] <= MAX_MODULES_AT_THE_TOP


def test_a_circle_is_all_that_can_be_reached_from_each_other() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}) == [frozenset("abc")]
    assert circles({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}) == [frozenset("cd"), frozenset("ab")]
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_modules_know_of_each_other_in_one_direction() -> None:
    found = [frozenset(map(inner, circle)) for circle in circles({name: known_modules(name) for name in INNER_MODULES})]
    grown = [circle for circle in found if not any(circle <= allowed for allowed in CIRCLES)]
    assert not grown, "a circle that is new, or has grown"
    vanished = [allowed for allowed in CIRCLES if allowed not in found]
    assert not vanished, "a circle that is smaller now: make its line in CIRCLES as small"


def test_the_lists_name_what_there_is() -> None:
    """A name that nothing answers to guards nothing."""
    parts = {inner(name).split(".")[0] for name in INNER_MODULES}
    named = {*ALLOWED, *PURE, *(name for allowed in ALLOWED.values() for name in allowed)}
    absent = {name for name in named if not any(is_below(inner(module), (name,)) for module in INNER_MODULES)}
    assert absent <= NOT_YET
    assert not NOT_YET & parts, "it is there now"


def test_what_decides_is_listed_as_such() -> None:
    """A module that performs nothing, and imports only such modules, is held to that from then on."""
    pure = set(PURE_MODULES)
    while True:
        more = {name for name in INNER_MODULES if name not in pure and decides(name, pure)}
        if not more:
            break
        pure |= more
    more_than_a_docstring = [name for name in pure - set(PURE_MODULES) if tree_of(name).body[1:]]
    missing = sorted(inner(name) for name in more_than_a_docstring)
    assert not [name for name in missing if not is_below(name, BESIDE)]


def decides(name: str, pure: set[str]) -> bool:
    """Whether it waits for nothing, and knows of nobody, not even by a type, who performs."""
    return does_nothing_itself(name) and known_modules(name) <= pure


@cache
def does_nothing_itself(name: str) -> bool:
    outer = {module.split(".")[0] for module in imports_of(name)}
    waits = any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(tree_of(name)))
    return not waits and not outer & (IMPURE_IMPORTS | EDGES)


def asked_of_the_machine(name: str) -> set[str]:
    """What of `WORLD` a module names, by import or by attribute."""
    named = imported_names(tree_of(name))
    named |= {
        ast.unparse(node)
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in named
    }
    return {what for what in WORLD if any(is_below(each, (what,)) for each in named)}


def asks_the_loop_for_the_time(name: str) -> bool:
    """Whether it calls `loop.time()`, however it came to the loop."""
    calls = [node.func for node in ast.walk(tree_of(name)) if isinstance(node, ast.Call)]
    attributes = [called for called in calls if isinstance(called, ast.Attribute) and called.attr == "time"]
    return any("loop" in ast.unparse(each.value) for each in attributes)


def imported_names(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_only_the_edge_asks_the_machine_for_time_chance_threads_and_sockets() -> None:
    beside = (*BESIDE, "tools", "cli")
    names = [name for name in INNER_MODULES if not is_below(inner(name), beside)]
    asked = {inner(name): asked_of_the_machine(name) for name in names}
    assert [inner(name) for name in names if asks_the_loop_for_the_time(name)] == ["process.watchdog"]
    assert {name: what for name, what in asked.items() if what} == AT_THE_EDGE


def test_no_imports_form_a_cycle() -> None:
    try:
        TopologicalSorter({name: our_imports(name) for name in INNER_MODULES}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_a_rule_imports_nothing_that_performs() -> None:
    impure = {}
    for name in PURE_MODULES:
        outer = {module for module in imports_of(name) if module.split(".")[0] in IMPURE_IMPORTS}
        outer -= READ_WHEN_IMPORTED.get(inner(name), set())
        impure[name] = outer | {module for module in our_imports(name) if not is_below(inner(module), PURE)}
    assert not {name: modules for name, modules in impure.items() if modules}


def test_a_rule_opens_and_prints_nothing() -> None:
    calls = [
        (name, node.func.id)
        for name in PURE_MODULES
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]
    assert not calls


def test_third_party_libraries_of_the_edges_stay_out_of_the_rules() -> None:
    for name in PURE_MODULES:
        assert not {module.split(".")[0] for module in imports_of(name)} & EDGES, name


def test_the_published_client_is_never_part_of_the_broker() -> None:
    for name in MODULES:
        assert "pulsar" not in {module.split(".")[0] for module in imports_of(name)}, name


def test_type_only_imports_are_not_counted_and_late_ones_are() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import decimal
def late():
    import fractions
"""
    assert imported_modules(ast.parse(source)) == {"typing", "fractions"}
