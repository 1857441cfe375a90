"""Reads user and password for SASL from a JAAS file, the configuration of Java's login modules.

Client {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    username="broker"
    password="secret";
};
"""

from __future__ import annotations

import re
from typing import Final

from pybroker.zookeeper.digest_md5 import SaslCredentials

DIGEST_MODULE: Final = "DigestLoginModule"
_TOKEN = re.compile(
    r'\s+|//[^\n]*|#[^\n]*|/\*.*?\*/|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[^\s{};="]+)|(?P<sign>[{};=])', re.DOTALL
)


def sasl_credentials(text: str, section: str) -> SaslCredentials:
    """Return user and password in a section of the JAAS file `text`. Raises ValueError, whose text contains no value of
    the file.
    """
    tokens = _tokens(text)
    try:
        start = tokens.index(section)
        while tokens[start + 1] != "{":
            start = tokens.index(section, start + 1)
        end = tokens.index("}", start)
    except (ValueError, IndexError):
        raise ValueError(f"the JAAS file has no section {section} {{ ... }};") from None
    module, *options = tokens[start + 2 : end] or [""]
    if module.rpartition(".")[2] != DIGEST_MODULE:
        raise ValueError(
            f"section {section} of the JAAS file has another login module than {DIGEST_MODULE}: only "
            "DIGEST-MD5 is supported"
        )
    found = {
        options[index - 1]: options[index + 1]
        for index, token in enumerate(options)
        if token == "=" and 0 < index < len(options) - 1
    }
    if not found.get("username") or "password" not in found:
        raise ValueError(f'section {section} of the JAAS file lacks username="..." or password="..."')
    return SaslCredentials(found["username"], found["password"])


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"the JAAS file is invalid: line {text.count(chr(10), 0, position) + 1} cannot be decoded")
        if match["text"] is not None:
            tokens.append(re.sub(r"\\(.)", r"\1", match["text"][1:-1]))
        elif match["word"] is not None or match["sign"] is not None:
            tokens.append(match[0])
        position = match.end()
    return tokens
