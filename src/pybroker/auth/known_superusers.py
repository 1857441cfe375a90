"""The roles that are superusers by the last answers of the provider, for decisions that cannot wait for an answer.

These are fair shares and queues, and messages in a transaction of another role. A role without an answer counts as no
superuser.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_ROLES = 10_000


class KnownSuperusers:
    """The answers of the provider whether roles are superusers, for at most `MAX_ROLES` roles. Above the limit, the
    oldest answer is dropped.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[str | None, bool] = OrderedDict()

    def __contains__(self, role: str | None) -> bool:
        return self._answers.get(role, False)

    def is_answered(self, role: str | None) -> bool:
        return role in self._answers

    def answered(self, role: str | None, *, is_superuser: bool) -> None:
        self._answers[role] = is_superuser
        self._answers.move_to_end(role)
        if len(self._answers) > MAX_ROLES:
            self._answers.popitem(last=False)

    def roles(self) -> list[str | None]:
        """Return the superusers."""
        return [role for role, is_superuser in self._answers.items() if is_superuser]

    def forget_others(self) -> None:
        """Forget the answers about roles that are not superusers."""
        for role in [role for role, is_superuser in self._answers.items() if not is_superuser]:
            del self._answers[role]

    def forget(self) -> None:
        self._answers.clear()
