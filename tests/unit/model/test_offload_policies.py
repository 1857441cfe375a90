"""Usable offload policies, and the values that follow from the driver."""

from __future__ import annotations

import pytest

from pybroker.model.offload_policies import OffloadPolicies, offload_refusal


@pytest.mark.parametrize(
    ("policies", "works"),
    [
        (OffloadPolicies(), False),
        (OffloadPolicies(managedLedgerOffloadDriver="magic"), False),
        (OffloadPolicies(managedLedgerOffloadDriver="filesystem"), True),
        (OffloadPolicies(managedLedgerOffloadDriver="aws-s3"), False),
        (OffloadPolicies(managedLedgerOffloadDriver="aws-s3", gcsManagedLedgerOffloadBucket="b"), False),
        (OffloadPolicies(managedLedgerOffloadDriver="AWS-S3", s3ManagedLedgerOffloadBucket="b"), True),
        (OffloadPolicies(managedLedgerOffloadDriver="google-cloud-storage", gcsManagedLedgerOffloadBucket="b"), True),
        (OffloadPolicies(managedLedgerOffloadDriver="azureblob", managedLedgerOffloadBucket="b"), True),
        (OffloadPolicies(managedLedgerOffloadDriver="azureblob", s3ManagedLedgerOffloadBucket="b"), False),
    ],
)
def test_a_known_driver_with_a_bucket_of_its_own_is_needed(policies: OffloadPolicies, works: bool) -> None:
    assert (offload_refusal(policies) == "") is works


def test_the_kind_of_driver_follows_from_its_name() -> None:
    made = OffloadPolicies(managedLedgerOffloadDriver="filesystem", s3Driver=True)
    assert (made.s3Driver, made.gcsDriver, made.fileSystemDriver) == (False, False, True)
