"""TLS contexts of the binary protocol and of HTTP."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from pybroker.client.failures import ClientError

if TYPE_CHECKING:
    from pybroker.client.access import Access


def tls_context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.tls_trust_certs_file)
        if access.tls_certificate_file is not None:
            context.load_cert_chain(access.tls_certificate_file, access.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(
            f"TLS certificates cannot be loaded: {error}; the files must exist on this machine"
        ) from error
    if access.tls_allow_insecure or not access.tls_verify_hostname:
        context.check_hostname = False
    if access.tls_allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    return context
