"""JAAS files: the section of the client among others, and errors that show no password."""

from __future__ import annotations

import pytest

from pybroker.zookeeper.digest_md5 import SaslCredentials
from pybroker.zookeeper.jaas import sasl_credentials

FILE = r"""
/* servers */
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_broker="other"; };
// the broker; not this Client {
Client {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    username="broker"  # its name
    password="s\"ec{r}e;t"
    extra=true;
};
"""


def test_section_of_the_client_is_read() -> None:
    assert sasl_credentials(FILE, "Client") == SaslCredentials("broker", 's"ec{r}e;t')


@pytest.mark.parametrize(
    ("text", "section", "reason"),
    [
        (FILE, "Other", "has no section Other"),
        (FILE, "Server", 'lacks username="..." or password="..."'),
        ("Client { com.sun.security.auth.module.Krb5LoginModule required; };", "Client", "only DIGEST-MD5"),
        ("Client { x.DigestLoginModule required username=u", "Client", "has no section Client"),
        ("Client {};", "Client", "only DIGEST-MD5"),
        ('Client {\n "secret', "Client", "line 2 cannot be decoded"),
        ("", "Client", "has no section"),
    ],
)
def test_file_without_credentials_is_refused(text: str, section: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        sasl_credentials(text, section)
    assert "secret" not in str(raised.value)
