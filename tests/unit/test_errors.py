"""One class for each error of the protocol, with its very name and its own code."""

import pytest

from pybroker import errors
from pybroker.errors import (
    AdminError,
    BadVersionError,
    BrokerError,
    LedgerFenced,
    MetadataError,
    NoSuchLedger,
    PersistenceError,
    ProtocolViolation,
    StorageFull,
    StoreError,
)
from pybroker.wire import pulsar_api_pb2 as pb


def test_every_error_of_the_protocol_has_the_class_of_its_name() -> None:
    classes = {code: error_type.__name__ for code, error_type in BrokerError.by_code.items()}
    assert classes == {code: name for name, code in pb.ServerError.items()}


@pytest.mark.parametrize("error_type", BrokerError.by_code.values(), ids=lambda error_type: error_type.__name__)
def test_a_class_holds_its_code_and_its_http_status(error_type: type[BrokerError]) -> None:
    assert BrokerError.by_code[error_type.code] is error_type
    assert 400 <= error_type.http_status < 600
    assert getattr(errors, error_type.__name__) is error_type
    assert str(error_type("why")) == "why"


def test_a_second_class_for_a_code_fails_when_it_is_defined() -> None:
    before = dict(BrokerError.by_code)
    with pytest.raises(AssertionError, match="two classes"):
        type("Second", (BrokerError,), {}, code=errors.ConsumerBusy.code)
    assert BrokerError.by_code == before


def test_a_refinement_of_an_error_keeps_its_code() -> None:
    class Refined(errors.ConsumerBusy):
        """A special case."""

    assert (Refined.code, Refined.http_status) == (errors.ConsumerBusy.code, errors.ConsumerBusy.http_status)
    assert BrokerError.by_code[Refined.code] is errors.ConsumerBusy


def test_the_families_of_errors_are_apart() -> None:
    for error_type in (ProtocolViolation, AdminError, StoreError):
        assert not issubclass(error_type, BrokerError)
    for store_error in (BadVersionError, LedgerFenced, NoSuchLedger):
        assert issubclass(store_error, StoreError)


def test_a_rest_refusal_holds_its_status_and_reason() -> None:
    refusal = AdminError(409, "namespace is not empty")
    assert (refusal.status, refusal.reason, str(refusal)) == (409, "namespace is not empty", "namespace is not empty")


def test_what_storage_failed_at_is_told_by_one_code_that_a_kind_of_failure_may_change() -> None:
    told = StorageFull("no room for entries").answer("not stored: ")
    assert isinstance(told, PersistenceError)
    assert str(told) == "not stored: no room for entries"

    class Elsewhere(StoreError):
        told_as = MetadataError

    assert isinstance(Elsewhere("gone").answer(), MetadataError)
