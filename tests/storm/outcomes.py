"""What came of what the clients of a storm tried, and the table of it. No IO.

An attempt ends in "ok", in the name of an error, or in TIMEOUT: whatever took as long as the client's operation time-out, also
when the client then names the last error that it was told.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

OK = "ok"
TIMEOUT = "time-out"


@dataclass(frozen=True)
class Outcome:
    """One attempt. An expected one is what a broker may answer here; anything else is for somebody to explain."""

    scenario: str
    action: str
    result: str
    took_ms: float
    is_expected: bool = True


@dataclass
class Results:
    """Of one broker, of all scenarios so far."""

    broker: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # by scenario: figures that are no attempts
    findings: dict[str, list[str]] = field(default_factory=dict)  # by scenario: what must not be
    took_s: dict[str, float] = field(default_factory=dict)  # by scenario

    def count(self, scenario: str, counts: Mapping[str, int]) -> None:
        sums = self.counts.setdefault(scenario, {})
        for what, count in counts.items():
            sums[what] = sums.get(what, 0) + count

    def find(self, scenario: str, findings: Iterable[str]) -> None:
        for text in findings:
            self.findings.setdefault(scenario, []).append(text)

    def timeouts(self) -> int:
        return sum(each.result == TIMEOUT for each in self.outcomes)

    def faults(self) -> list[str]:
        """Everything that a broker must not do: time-outs, answers that nobody expects, and findings."""
        faults: Counter[str] = Counter()
        for each in self.outcomes:
            if each.result == TIMEOUT or not each.is_expected:
                faults[f"{each.scenario}: {each.action}: {each.result}"] += 1
        lines = [f"{count} x {text}" for text, count in faults.items()]
        return lines + [f"{scenario}: {text}" for scenario, texts in self.findings.items() for text in texts]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Results":
        values: dict[str, Any] = json.loads(text)
        values["outcomes"] = [Outcome(**each) for each in values["outcomes"]]
        return cls(**values)


def percentile(sorted_values: list[float], share: float) -> float:
    """The smallest value that so many are not above; 0 of none."""
    if not sorted_values:
        return 0.0
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def described(outcomes: list[Outcome]) -> list[str]:
    """The cells of one broker: outcomes by result, and how long they took."""
    if not outcomes:
        return ["", ""]
    results = Counter(each.result for each in outcomes)
    odd = {each.result for each in outcomes if not each.is_expected or each.result == TIMEOUT}
    order = sorted(results, key=lambda result: (result != OK, -results[result], result))
    said = ", ".join(f"{results[result]} {f'**{result}**' if result in odd else result}" for result in order)
    took = sorted(each.took_ms for each in outcomes)
    return [said, " / ".join(f"{percentile(took, share):.0f}" for share in (0.5, 0.99, 1.0))]


def table(all_results: list[Results]) -> str:
    """Markdown: a row for each scenario and action, two columns for each broker."""
    cells: dict[tuple[str, str], dict[int, list[Outcome]]] = {}
    for index, results in enumerate(all_results):
        for each in results.outcomes:
            cells.setdefault((each.scenario, each.action), {}).setdefault(index, []).append(each)
    heads = [text for results in all_results for text in (results.broker, "p50 / p99 / max ms")]
    lines = [f"| {' | '.join(['scenario', 'action', *heads])} |", "|---" * (2 + len(heads)) + "|"]
    for (scenario, action), by_broker in cells.items():
        row = [scenario, action]
        for index in range(len(all_results)):
            row += described(by_broker.get(index, []))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def notes(results: Results) -> list[str]:
    """Counts and findings of one broker, one a line."""
    lines = []
    for scenario, counts in results.counts.items():
        lines.append(f"{scenario}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    return lines
