"""Documents that depend on each other: bundles and local policies of a namespace, quotas, groups, and what a deletion leaves."""

from tests.differential.harness import Run, scenario
from tests.differential.scenarios_rest import V2, with_tenant

QUOTA = {"msgRateIn": 1.5, "msgRateOut": 2.5, "bandwidthIn": 1.0, "bandwidthOut": 2.0, "memory": 16.0, "dynamic": False}
HALF = "0x00000000_0x80000000"
QUARTER = "0x00000000_0x40000000"


def record_bundles(run: Run, label: str, path: str) -> None:
    run.rest(f"{label}: document", "GET", path)
    run.rest(f"{label}: bundles", "GET", f"{path}/bundles")
    run.rest(f"{label}: group", "GET", f"{path}/antiAffinity")
    run.rest(f"{label}: affinity", "GET", f"{path}/persistence/bookieAffinity")


@scenario
def metadata_local_policies(run: Run) -> None:
    """Bundles and migration flag through splits, local policies, and the namespace's second life."""
    tenant = with_tenant(run)
    path = f"{V2}/namespaces/{tenant}/ns"
    run.rest("create", "PUT", path, {"bundles": {"numBundles": 2}})
    run.rest("set affinity", "POST", f"{path}/persistence/bookieAffinity", {"bookkeeperAffinityGroupPrimary": "p"})
    record_bundles(run, "with affinity", path)
    run.rest("split", "PUT", f"{path}/{HALF}/split")
    record_bundles(run, "split", path)
    run.rest("split again", "PUT", f"{path}/{HALF}/split")
    run.rest("set a policy", "POST", f"{path}/messageTTL", 60)
    record_bundles(run, "policy set", path)
    run.rest("migrated", "POST", f"{path}/migration", True)
    run.rest("set another policy", "POST", f"{path}/maxProducersPerTopic", 5)
    record_bundles(run, "migrated", path)
    run.rest("not migrated", "POST", f"{path}/migration", False)
    run.rest("remove affinity", "DELETE", f"{path}/persistence/bookieAffinity")
    record_bundles(run, "affinity removed", path)
    run.rest("set quota", "POST", f"{V2}/resource-quotas/{tenant}/ns/{QUARTER}", QUOTA)
    run.rest("quota", "GET", f"{V2}/resource-quotas/{tenant}/ns/{QUARTER}")
    run.rest(
        "set affinity again", "POST", f"{path}/persistence/bookieAffinity", {"bookkeeperAffinityGroupPrimary": "q"}
    )
    run.rest("delete", "DELETE", path)
    run.rest("create again", "PUT", path, {"bundles": {"numBundles": 4}})
    record_bundles(run, "created again", path)


@scenario
def metadata_names(run: Run) -> None:
    """Names with spaces, signs and letters beyond ASCII: resource groups, failure domains, partitioned topics."""
    tenant = with_tenant(run)
    run.rest("namespace", "PUT", f"{V2}/namespaces/{tenant}/ns")
    base = f"{V2}/persistent/{tenant}/ns"
    for name in ("a%20b", "gr%C3%B6%C3%9Fe", "50%25", "a%2Bb", "tilde~star*"):
        group = f"{V2}/resourcegroups/{run.token}{name}"
        run.rest(f"set group {name}", "PUT", group, {"publishRateInMsgs": 7})
        run.rest(f"group {name}", "GET", group)
        run.rest(f"delete group {name}", "DELETE", group)
        run.rest(f"group deleted {name}", "GET", group)
        run.rest(f"create topic {name}", "PUT", f"{base}/{name}/partitions", 2)
        run.rest(f"topic {name}", "GET", f"{base}/{name}/partitions")
    run.rest("topics", "GET", f"{base}/partitioned")
    for name in ("a%20b", "gr%C3%B6%C3%9Fe", "50%25", "a%2Bb", "tilde~star*"):
        run.rest(f"delete topic {name}", "DELETE", f"{base}/{name}/partitions")
    run.rest("no topics", "GET", f"{base}/partitioned")


@scenario
def metadata_clusters(run: Run) -> None:
    """A cluster with failure domains, policies and a migration is deleted and created again."""
    name = run.token
    cluster = f"{V2}/clusters/{name}"
    data = {"serviceUrl": "http://a:8080", "brokerServiceUrl": "pulsar://a:6650"}
    run.rest(
        "create",
        "PUT",
        cluster,
        {**data, "brokerClientSslFactoryPlugin": "P", "brokerClientSslFactoryPluginParams": "x"},
    )
    run.rest("cluster", "GET", cluster)
    run.rest("set peers", "POST", f"{cluster}/peers", ["standalone"])
    run.rest("with peers", "GET", cluster)
    run.rest("replace", "POST", cluster, data)
    run.rest("replaced", "GET", cluster)
    for domain in ("d1", "d2"):
        run.rest(f"set {domain}", "POST", f"{cluster}/failureDomains/{domain}", {"brokers": [f"{domain}:1"]})
    run.rest("domains", "GET", f"{cluster}/failureDomains")
    run.rest("delete d1", "DELETE", f"{cluster}/failureDomains/d1")
    run.rest("domains left", "GET", f"{cluster}/failureDomains")
    run.rest("migrate", "POST", f"{cluster}/migrate?migrated=true", data)
    run.rest("migration", "GET", f"{cluster}/migrate")
    run.rest("delete", "DELETE", cluster)
    run.rest("create again", "PUT", cluster, data)
    run.rest("cluster again", "GET", cluster)
    run.rest("domains again", "GET", f"{cluster}/failureDomains")
    run.rest("migration again", "GET", f"{cluster}/migrate")
    run.rest("delete again", "DELETE", cluster)


@scenario
def metadata_boundaries(run: Run) -> None:
    """Namespaces that are created with boundaries of their bundles, with and without the number of bundles."""
    tenant = with_tenant(run)
    quarters = ["0x00000000", "0x40000000", "0x80000000", "0xffffffff"]
    cases: dict[str, dict[str, object]] = {
        "boundaries and number": {"boundaries": quarters, "numBundles": 3},
        "boundaries only": {"boundaries": quarters},
        "boundaries and zero": {"boundaries": quarters, "numBundles": 0},
        "number only": {"numBundles": 3},
        "other number": {"boundaries": quarters, "numBundles": 5},
        "nothing": {},
    }
    for number, (label, bundles) in enumerate(cases.items()):
        path = f"{V2}/namespaces/{tenant}/ns{number}"
        run.rest(f"{label}: create", "PUT", path, {"bundles": bundles})
        run.rest(f"{label}: bundles", "GET", f"{path}/bundles")
