"""When a schema that is handed in again is the one that is already there.

A topic's versions are found by this: the same schema gets the version that it had. For types defined in Avro two
definitions are one schema when Avro takes them for equal (see `avro.canonical_text`); for all others the bytes decide.
Properties never count, not even those of KEY_VALUE.
"""

from __future__ import annotations

import hashlib

from pybroker.schema.avro import canonical_text, parse_avro
from pybroker.schema.schema_data import AVRO_DEFINED_TYPES, InvalidSchema, SchemaData


def schema_digest(schema: SchemaData) -> bytes:
    """Equal for schemas that are the same one, 32 bytes; of a definition that does not parse, the bytes count."""
    digest = hashlib.sha256(schema.type.to_bytes(1))
    content = schema.data
    if schema.type in AVRO_DEFINED_TYPES:
        try:
            content = canonical_text(parse_avro(schema.data)).encode(errors="surrogatepass")
        except InvalidSchema:
            digest.update(b"unparsable ")
    digest.update(content)
    return digest.digest()
