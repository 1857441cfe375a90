"""Text output of `pybroker explain`. Pure: width and time are arguments.

Control characters in names and keys are escaped. Lines fit the width, except commands, which must not be broken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pybroker.cli.text_tables import Cell, age, columns_of, cut, moment, printable, size, table
from pybroker.cli.which_broker import SameBroker
from pybroker.model.finding_evidence import evidence_shown
from pybroker.model.findings import shell_command

Document = dict[str, Any]
BOLD, RED, YELLOW, GREEN, CYAN, DIM = "1", "31", "33", "32", "36", "2"
LEAST_WIDTH = 40
INDENT = "  "
_SEVERITY_STYLES = {"irreversible": (RED,), "disruptive": (YELLOW,)}


_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Line(NamedTuple):
    """A line of output with terminal styles."""

    text: str = ""
    styles: tuple[str, ...] = ()
    is_command: bool = False


class ExplainText:
    """Formatter of `explain` documents for one width, time and broker."""

    def __init__(self, width: int, now_ms: int, where: SameBroker) -> None:
        self._width = max(LEAST_WIDTH, width)
        self._now_ms = now_ms
        self._where = where

    def document(self, document: Document) -> list[Line]:
        """Return the lines about a topic, subscription, key, message, consumer or producer."""
        place = " / ".join(str(part) for part in (document.get("topic"), document.get("subscription")) if part)
        findings: list[Document] = document.get("findings", [])
        lines = [*self._headline(document), *self._wrapped(place, "", DIM)]
        if owner := document.get("owner"):
            served = f", owner {owner['broker']}" if owner.get("broker") else ""
            lines += self._wrapped(f"bundle {owner['bundle']}{served}", "", DIM)
        if subject := _subject(document.get("subject", {})):
            lines += self._wrapped(subject, "", DIM)
        for index, finding in enumerate(findings, 1):
            lines += self._finding(finding, f"{index}. " if len(findings) > 1 else "")
        if "subscriptions" in document:
            lines += self._subscriptions(document)
        return lines

    def stuck(self, document: Document) -> list[Line]:
        """Return the lines about the stuck topics of a broker or a cluster, worst first."""
        topics, matching, brokers = document["topics"], document["matching"], document.get("brokers")
        missing = [each for each in brokers or () if each.get("problem")]
        where = "on this broker" if brokers is None else "in this cluster"
        lines = self._broker_findings(document)
        if not topics and not missing:
            return [*lines, Line(f"Nothing is stuck {where}.", (BOLD, GREEN))]
        if topics:
            are = "topic is stuck" if matching == 1 else "topics are stuck"
            lines += self._wrapped(f"{matching:,} {are} {where}", "", BOLD, YELLOW)
        else:
            lines += self._wrapped("Nothing is stuck on the brokers that answered.", "", BOLD, YELLOW)
        for each in missing:
            text = f"Broker {each['id']} {each['problem']}: its stuck topics are missing here."
            lines += self._wrapped(text, "", YELLOW)
        for each in topics:
            finding = each["finding"]
            place = " / ".join(part for part in (each["topic"], each["subscription"]) if part)
            others = each["standing"] - (each["subscription"] is not None)
            more = f" {_counted(others, 'more subscription is', 'more subscriptions are')} stuck." if others > 0 else ""
            since_ms = finding.get("since")
            for_long = f", for {age(self._now_ms - since_ms)}" if since_ms else ""
            lines += [Line(), *self._wrapped(f"{place}{for_long}", "", BOLD)]
            if each.get("broker"):
                lines += self._wrapped(f"broker {each['broker']}", INDENT, DIM)
            lines += self._wrapped(f"{finding['sentence']}{more}", INDENT)
            lines.append(self._command(_explain_command(each["topic"], each["subscription"])))
        if matching > len(topics):
            lines += [Line(), *self._wrapped(f"{matching - len(topics):,} more: use --limit {matching}", "", DIM)]
        return lines

    def _broker_findings(self, document: Document) -> list[Line]:
        lines: list[Line] = []
        for each in document.get("broker", ()):
            at = f"Broker {each['broker']}: " if each.get("broker") else ""
            lines += self._finding({**each, "sentence": f"{at}{each.get('sentence', '')}"}, "")
        return [*lines, Line()] if lines else []

    # --- parts -------------------------------------------------------------------------------------------------------

    def _headline(self, document: Document) -> list[Line]:
        waits = bool(document.get("waiting"))
        headline = document.get("headline") or {}
        text = headline.get("text") or ("Messages wait" if waits else "Nothing is stuck")
        return self._wrapped(f"{text}{self._since(headline)}", "", BOLD, YELLOW if waits else GREEN)

    def _since(self, item: Document) -> str:
        since_ms = item.get("since")
        return f" for {age(self._now_ms - since_ms)} (since {moment(since_ms)})" if since_ms else ""

    def _finding(self, finding: Document, number: str) -> list[Line]:
        waits, code = bool(finding.get("waits")), str(finding.get("code", ""))
        kind = "blocks messages" if waits else "for information"
        lines = [
            Line(),
            *self._wrapped(f"{number}{finding.get('sentence', '')}", "", BOLD, hanging=" " * len(number)),
        ]
        lines += self._wrapped(f"[{code}] {kind}{self._since(finding)}", INDENT, DIM)
        lines += self._evidence(finding)
        if finding.get("why"):
            guide = f' See "{finding["guide"]}" in the how-to guides.' if finding.get("guide") else ""
            lines += [Line(), *self._wrapped(f"Why: {finding['why']}{guide}", INDENT)]
        lines += self._what_to_do(finding)
        return lines

    def _evidence(self, finding: Document) -> list[Line]:
        # Older brokers send only the evidence.
        both = finding if "facts" in finding else evidence_shown(finding.get("evidence") or {})
        shown, lines = both["table"], []
        if shown and shown["rows"]:
            kinds = [column["kind"] for column in shown["columns"]]
            rows = [[self._cell(kind, value) for kind, value in zip(kinds, row, strict=True)] for row in shown["rows"]]
            lines += [Line(), *self._table([column["title"] for column in shown["columns"]], rows)]
            if shown["more"]:
                command = finding.get("moreCommand")
                lines += self._wrapped(f"and {shown['more']:,} more{', all of them with:' if command else ''}", INDENT)
                lines += [self._command(command)] if command else []
        facts = both["facts"]
        if facts:
            lines.append(Line())
            wide = min(24, max(columns_of(printable(each["title"])) for each in facts))
            for each in facts:
                title = cut(printable(each["title"]), wide)
                text = self._text(each["kind"], each["value"])
                blanks = " " * (wide - columns_of(title))
                lines += self._wrapped(text, f"{INDENT}{title}{blanks}  ", DIM, hanging=" " * (wide + 4))
        return lines

    def _what_to_do(self, finding: Document) -> list[Line]:
        actions: Sequence[Document] = finding.get("actions") or ()
        advice = finding.get("advice")
        if not actions and not advice:
            return []
        lines = [Line(), *self._wrapped(f"What to do: {advice or ''}".rstrip(), INDENT)]
        for index, action in enumerate(actions, 1):
            text = " ".join(
                part for part in (f"{str(action.get('text', '')).rstrip('.')}.", action.get("cost")) if part
            )
            styles = _SEVERITY_STYLES.get(str(action.get("severity")), ())
            lines += self._wrapped(f"{index}. {text}", INDENT, *styles, hanging=INDENT + "   ")
            if action.get("command"):
                lines.append(self._command(str(action["command"]), INDENT + "   "))
        return lines

    def _subscriptions(self, document: Document) -> list[Line]:
        lines, listed = [Line()], document["subscriptions"]
        if not listed:
            return [*lines, *self._wrapped("The topic has no subscriptions.")]
        rows: list[list[Cell]] = []
        for each in listed:
            findings = each.get("findings") or [{}]
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            since_ms = findings[0].get("since")
            for_long = age(self._now_ms - since_ms) if since_ms else None
            state = "stuck" if each["waiting"] else "ok"
            rows.append([each["subscription"], state, for_long, (findings[0].get("sentence") or "") + more or None])
        lines += self._table(["SUBSCRIPTION", "STATE", "FOR", "FINDING"], rows, indent="")
        if more_subscriptions := document.get("moreSubscriptions"):
            lines += self._wrapped(
                f"and {more_subscriptions:,} more subscriptions: run explain with the name of a subscription", ""
            )
        stuck = next((each["subscription"] for each in listed if each["waiting"]), None)
        if stuck is not None:
            lines += [
                *self._wrapped("Details of one subscription:", ""),
                self._command(_explain_command(document["topic"], stuck)),
            ]
        return lines

    # --- values ------------------------------------------------------------------------------------------------------

    def _cell(self, kind: str, value: Any) -> Cell:
        if value is None or (kind == "number" and not isinstance(value, bool) and isinstance(value, int | float)):
            return value
        return self._text(kind, value)

    def _text(self, kind: str, value: Any) -> str:
        if not isinstance(value, int | float) or isinstance(value, bool) or kind == "text":
            return printable(str(value))
        if kind == "since":
            return age(max(0, self._now_ms - value)) or ""
        if kind == "time":
            left_ms = value - self._now_ms
            when = f"in {age(left_ms)}" if left_ms > 0 else f"{age(-left_ms)} ago"
            return f"{moment(int(value)) or value} ({when})"
        if kind == "duration":
            return age(value) or ""
        return (size(value) or "") if kind == "bytes" else f"{value:,}"

    # --- lines -------------------------------------------------------------------------------------------------------

    def _table(self, head: Sequence[str], rows: Sequence[Sequence[Cell]], indent: str = INDENT) -> list[Line]:
        lines = table(head, rows, self._width - len(indent))
        return [
            Line(indent + cut(text, self._width - len(indent)), (BOLD,) if index == 0 else ())
            for index, text in enumerate(lines)
        ]

    def _command(self, command: str, indent: str = INDENT + INDENT) -> Line:
        return Line(indent + printable(self._where.command(command)), (CYAN,), is_command=True)

    def _wrapped(self, text: str, indent: str = "", *styles: str, hanging: str | None = None) -> list[Line]:
        rest = indent if hanging is None else hanging
        lines: list[Line] = []
        line, taken, has_words = indent, columns_of(indent), False
        for word in printable(text).split(" "):
            left, wide = word, columns_of(word)
            while taken + has_words + wide > self._width:
                if has_words:
                    lines.append(Line(line.rstrip(), styles))
                else:
                    head = _head(left, self._width - taken)
                    lines.append(Line(line + head, styles))
                    left = left[len(head) :]
                    wide = columns_of(left)
                line, taken, has_words = rest, columns_of(rest), False
            line += f" {left}" if has_words else left
            taken += has_words + wide
            has_words = True
        if line.strip():
            lines.append(Line(line.rstrip(), styles))
        return lines


def _head(text: str, width: int) -> str:
    end, taken = 1, columns_of(text[0])
    while end < len(text) and taken + columns_of(text[end]) <= width:
        taken += columns_of(text[end])
        end += 1
    return text[:end]


def _subject(subject: Document) -> str:
    kind = subject.get("kind", "")
    if kind in {"", "topic", "subscription"}:
        return ""
    facts = [
        f"{_CAPITAL.sub(' ', name).lower()} {_flat(value)}"
        for name, value in subject.items()
        if name not in {"kind", kind} and value is not None
    ]
    first = _flat(subject[kind]) if kind in subject else ""
    return " ".join(part for part in (kind, first, f"({', '.join(facts)})" if facts else "") if part)


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return str(value.get("name", ""))
    return str(value)


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _explain_command(topic: str, subscription: str | None) -> str:
    words = [topic, *([] if subscription is None else [subscription])]
    marker = ["--"] if any(word.startswith("-") for word in words) else []
    return shell_command(["pybroker", "explain", *marker, *words])
