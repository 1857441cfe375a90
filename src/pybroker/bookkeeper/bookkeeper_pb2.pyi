from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PacketHeader(_message.Message):
    __slots__ = ("version", "operation", "txn_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    operation: int
    txn_id: int
    def __init__(self, version: _Optional[int] = ..., operation: _Optional[int] = ..., txn_id: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("header", "read", "add", "auth", "write_lac", "read_lac", "info", "start_tls", "force", "list_entries")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    WRITE_LAC_FIELD_NUMBER: _ClassVar[int]
    READ_LAC_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    START_TLS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    LIST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    header: PacketHeader
    read: ReadRequest
    add: AddRequest
    auth: AuthMessage
    write_lac: WriteLacRequest
    read_lac: LedgerRequest
    info: InfoRequest
    start_tls: StartTls
    force: LedgerRequest
    list_entries: LedgerRequest
    def __init__(self, header: _Optional[_Union[PacketHeader, _Mapping]] = ..., read: _Optional[_Union[ReadRequest, _Mapping]] = ..., add: _Optional[_Union[AddRequest, _Mapping]] = ..., auth: _Optional[_Union[AuthMessage, _Mapping]] = ..., write_lac: _Optional[_Union[WriteLacRequest, _Mapping]] = ..., read_lac: _Optional[_Union[LedgerRequest, _Mapping]] = ..., info: _Optional[_Union[InfoRequest, _Mapping]] = ..., start_tls: _Optional[_Union[StartTls, _Mapping]] = ..., force: _Optional[_Union[LedgerRequest, _Mapping]] = ..., list_entries: _Optional[_Union[LedgerRequest, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "master_key", "flag")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    master_key: bytes
    flag: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., flag: _Optional[int] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "master_key", "body", "write_flags", "flag")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    WRITE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    master_key: bytes
    body: bytes
    write_flags: int
    flag: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., body: _Optional[bytes] = ..., write_flags: _Optional[int] = ..., flag: _Optional[int] = ...) -> None: ...

class WriteLacRequest(_message.Message):
    __slots__ = ("ledger_id", "lac", "master_key", "body")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    lac: int
    master_key: bytes
    body: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., lac: _Optional[int] = ..., master_key: _Optional[bytes] = ..., body: _Optional[bytes] = ...) -> None: ...

class LedgerRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ("requested",)
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    requested: int
    def __init__(self, requested: _Optional[int] = ...) -> None: ...

class StartTls(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuthMessage(_message.Message):
    __slots__ = ("plugin_name", "payload")
    PLUGIN_NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    plugin_name: str
    payload: bytes
    def __init__(self, plugin_name: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("header", "status", "read", "add", "auth", "write_lac", "read_lac", "info", "force")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    WRITE_LAC_FIELD_NUMBER: _ClassVar[int]
    READ_LAC_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    header: PacketHeader
    status: int
    read: ReadResponse
    add: AddResponse
    auth: AuthMessage
    write_lac: LedgerResponse
    read_lac: ReadLacResponse
    info: InfoResponse
    force: LedgerResponse
    def __init__(self, header: _Optional[_Union[PacketHeader, _Mapping]] = ..., status: _Optional[int] = ..., read: _Optional[_Union[ReadResponse, _Mapping]] = ..., add: _Optional[_Union[AddResponse, _Mapping]] = ..., auth: _Optional[_Union[AuthMessage, _Mapping]] = ..., write_lac: _Optional[_Union[LedgerResponse, _Mapping]] = ..., read_lac: _Optional[_Union[ReadLacResponse, _Mapping]] = ..., info: _Optional[_Union[InfoResponse, _Mapping]] = ..., force: _Optional[_Union[LedgerResponse, _Mapping]] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("status", "ledger_id", "entry_id", "body")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    status: int
    ledger_id: int
    entry_id: int
    body: bytes
    def __init__(self, status: _Optional[int] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class AddResponse(_message.Message):
    __slots__ = ("status", "ledger_id", "entry_id")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    status: int
    ledger_id: int
    entry_id: int
    def __init__(self, status: _Optional[int] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class LedgerResponse(_message.Message):
    __slots__ = ("status", "ledger_id")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    status: int
    ledger_id: int
    def __init__(self, status: _Optional[int] = ..., ledger_id: _Optional[int] = ...) -> None: ...

class ReadLacResponse(_message.Message):
    __slots__ = ("status", "ledger_id", "lac_body", "last_entry_body")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAC_BODY_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_BODY_FIELD_NUMBER: _ClassVar[int]
    status: int
    ledger_id: int
    lac_body: bytes
    last_entry_body: bytes
    def __init__(self, status: _Optional[int] = ..., ledger_id: _Optional[int] = ..., lac_body: _Optional[bytes] = ..., last_entry_body: _Optional[bytes] = ...) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("status", "total_disk_capacity", "free_disk_space")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_DISK_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FREE_DISK_SPACE_FIELD_NUMBER: _ClassVar[int]
    status: int
    total_disk_capacity: int
    free_disk_space: int
    def __init__(self, status: _Optional[int] = ..., total_disk_capacity: _Optional[int] = ..., free_disk_space: _Optional[int] = ...) -> None: ...

class LedgerMetadataFormat(_message.Message):
    __slots__ = ("write_quorum", "ensemble_size", "length", "last_entry_id", "state", "segments", "digest_type", "password", "ack_quorum", "created_ms", "custom_metadata", "token")
    class Segment(_message.Message):
        __slots__ = ("members", "first_entry_id")
        MEMBERS_FIELD_NUMBER: _ClassVar[int]
        FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
        members: _containers.RepeatedScalarFieldContainer[str]
        first_entry_id: int
        def __init__(self, members: _Optional[_Iterable[str]] = ..., first_entry_id: _Optional[int] = ...) -> None: ...
    class CustomValue(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_METADATA_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    write_quorum: int
    ensemble_size: int
    length: int
    last_entry_id: int
    state: int
    segments: _containers.RepeatedCompositeFieldContainer[LedgerMetadataFormat.Segment]
    digest_type: int
    password: bytes
    ack_quorum: int
    created_ms: int
    custom_metadata: _containers.RepeatedCompositeFieldContainer[LedgerMetadataFormat.CustomValue]
    token: int
    def __init__(self, write_quorum: _Optional[int] = ..., ensemble_size: _Optional[int] = ..., length: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., state: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[LedgerMetadataFormat.Segment, _Mapping]]] = ..., digest_type: _Optional[int] = ..., password: _Optional[bytes] = ..., ack_quorum: _Optional[int] = ..., created_ms: _Optional[int] = ..., custom_metadata: _Optional[_Iterable[_Union[LedgerMetadataFormat.CustomValue, _Mapping]]] = ..., token: _Optional[int] = ...) -> None: ...

class BookieServiceInfo(_message.Message):
    __slots__ = ("endpoints",)
    class Endpoint(_message.Message):
        __slots__ = ("id", "port", "host", "protocol")
        ID_FIELD_NUMBER: _ClassVar[int]
        PORT_FIELD_NUMBER: _ClassVar[int]
        HOST_FIELD_NUMBER: _ClassVar[int]
        PROTOCOL_FIELD_NUMBER: _ClassVar[int]
        id: str
        port: int
        host: str
        protocol: str
        def __init__(self, id: _Optional[str] = ..., port: _Optional[int] = ..., host: _Optional[str] = ..., protocol: _Optional[str] = ...) -> None: ...
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[BookieServiceInfo.Endpoint]
    def __init__(self, endpoints: _Optional[_Iterable[_Union[BookieServiceInfo.Endpoint, _Mapping]]] = ...) -> None: ...
