"""What a fuzz run has sent and what was answered."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of one run; `faults` is what a broker must not do."""

    kinds: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)  # by command or route
    answers: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    closed_by_broker: int = 0
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        if len(self.faults) < 20:
            self.faults.append(text)

    def lines(self, what: str) -> list[str]:
        """For people. Routes are too many to be shown one by one."""
        total = sum(self.kinds.values())
        lines = [
            f"{total} {what} on {self.connections} connections, of which the broker closed {self.closed_by_broker}"
        ]
        lines.append("  how:     " + counted(self.kinds))
        if len(self.sent) <= 80:
            lines.append("  what:    " + counted(self.sent))
        lines.append("  answers: " + counted(self.answers))
        return lines


def counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
