"""Secrets of clients, read where they are used.

No secret appears in a `repr` or an error. A `Secret` with a file or an environment variable keeps the secret itself out
of inter-process messages.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

MAX_SECRET_BYTES = 64 * 1024
"""Prevents sending the content of a wrong file, such as a log, to a broker."""


class AccessRefused(ValueError):
    """A secret cannot be read, or settings contradict each other. The text names the setting and contains no secret."""


@dataclass(frozen=True)
class Secret:
    """A secret text, or the file or environment variable that contains it. Exactly one of the three is set.

    `in_file` and `in_environment` are read at each use, in the process that needs the secret.
    """

    text: str | None = field(default=None, repr=False)
    in_file: str | None = None
    in_environment: str | None = None

    def reveal(self) -> str:
        """Return the secret without surrounding white space. Raises AccessRefused."""
        if self.text is not None:
            return self.text
        if self.in_environment is not None:
            value = os.environ.get(self.in_environment)
            if not value:
                raise AccessRefused(
                    f"the environment variable {self.in_environment} is not set in this process: "
                    "set it on the driver and on every executor"
                )
            return value.strip()
        assert self.in_file is not None
        try:
            with Path(self.in_file).open("rb") as file:
                content = file.read(MAX_SECRET_BYTES + 1)
        except OSError as error:
            raise AccessRefused(
                f"the secret's file {self.in_file} cannot be read: {error.strerror}; the file must exist "
                "on the driver and on every executor"
            ) from error
        if not content.strip() or len(content) > MAX_SECRET_BYTES:
            raise AccessRefused(
                f"the file {self.in_file} of a secret is empty, or larger than {MAX_SECRET_BYTES} bytes"
            )
        return content.decode("utf-8", "replace").strip()  # the broker checks its validity
