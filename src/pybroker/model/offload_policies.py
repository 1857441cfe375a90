"""Offload policies: where and when closed ledgers are moved to cheaper storage. Pure.

Attributes are named like the JSON properties. Invariant: the three booleans follow from the driver.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import msgspec

_S3_DRIVERS = ("S3", "aws-s3")
_GCS_DRIVER = "google-cloud-storage"
_FILE_DRIVER = "filesystem"
DRIVERS = (*_S3_DRIVERS, _GCS_DRIVER, _FILE_DRIVER, "azureblob", "aliyun-oss")
_MEGABYTE = 1 << 20


class OffloadPolicies(msgspec.Struct):
    """The document of offload policies, with Pulsar's defaults. Properties with None are absent."""

    offloadersDirectory: str = "./offloaders"
    managedLedgerOffloadDriver: str | None = None
    managedLedgerOffloadMaxThreads: int = 2
    managedLedgerOffloadReadThreads: int = 2
    managedLedgerOffloadPrefetchRounds: int = 1
    managedLedgerOffloadThresholdInSeconds: int | None = None
    managedLedgerOffloadThresholdInBytes: int | None = None
    managedLedgerOffloadDeletionLagInMillis: int | None = None
    managedLedgerExtraConfigurations: dict[str, str] = {}
    s3ManagedLedgerOffloadRegion: str | None = None
    s3ManagedLedgerOffloadBucket: str | None = None
    s3ManagedLedgerOffloadServiceEndpoint: str | None = None
    s3ManagedLedgerOffloadMaxBlockSizeInBytes: int = 64 * _MEGABYTE
    s3ManagedLedgerOffloadReadBufferSizeInBytes: int = _MEGABYTE
    s3ManagedLedgerOffloadCredentialId: str | None = None
    s3ManagedLedgerOffloadCredentialSecret: str | None = None
    s3ManagedLedgerOffloadRole: str | None = None
    s3ManagedLedgerOffloadRoleSessionName: str = "pulsar-s3-offload"
    gcsManagedLedgerOffloadRegion: str | None = None
    gcsManagedLedgerOffloadBucket: str | None = None
    gcsManagedLedgerOffloadMaxBlockSizeInBytes: int = 128 * _MEGABYTE
    gcsManagedLedgerOffloadReadBufferSizeInBytes: int = _MEGABYTE
    gcsManagedLedgerOffloadServiceAccountKeyFile: str | None = None
    fileSystemProfilePath: str | None = None
    fileSystemURI: str | None = None
    managedLedgerOffloadBucket: str | None = None
    managedLedgerOffloadRegion: str | None = None
    managedLedgerOffloadServiceEndpoint: str | None = None
    managedLedgerOffloadMaxBlockSizeInBytes: int | None = None
    managedLedgerOffloadReadBufferSizeInBytes: int | None = None
    s3Driver: bool = False
    gcsDriver: bool = False
    fileSystemDriver: bool = False

    def __post_init__(self) -> None:
        driver = (self.managedLedgerOffloadDriver or "").lower()
        self.s3Driver = driver in {name.lower() for name in _S3_DRIVERS}
        self.gcsDriver = driver == _GCS_DRIVER
        self.fileSystemDriver = driver == _FILE_DRIVER


def offload_refusal(policies: OffloadPolicies) -> str:
    driver = (policies.managedLedgerOffloadDriver or "").lower()
    if driver not in {name.lower() for name in DRIVERS}:
        return f"The driver is not supported, support value: {','.join(DRIVERS)}"
    of_driver = policies.s3ManagedLedgerOffloadBucket if policies.s3Driver else None
    if policies.gcsDriver:
        of_driver = policies.gcsManagedLedgerOffloadBucket
    if not policies.fileSystemDriver and not (policies.managedLedgerOffloadBucket or of_driver):
        return "The bucket must be specified for namespace offload."
    return ""
