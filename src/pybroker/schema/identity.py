"""Identity of schemas: registering an equal schema returns its existing version.

Definitions of Avro-based types are equal if Avro considers them equal (`avro.canonical_text`), other types if their
bytes are equal. Properties are ignored, including the properties of KEY_VALUE.
"""

from __future__ import annotations

import hashlib

from pybroker.schema.avro import canonical_text, parse_avro
from pybroker.schema.schema_data import AVRO_DEFINED_TYPES, InvalidSchema, SchemaData


def schema_digest(schema: SchemaData) -> bytes:
    """Return a digest of 32 bytes, which is the same for equal schemas. A definition that cannot be parsed is compared
    by its bytes.
    """
    digest = hashlib.sha256(schema.type.to_bytes(1))
    content = schema.data
    if schema.type in AVRO_DEFINED_TYPES:
        try:
            content = canonical_text(parse_avro(schema.data)).encode(errors="surrogatepass")
        except InvalidSchema:
            digest.update(b"unparsable ")
    digest.update(content)
    return digest.digest()
