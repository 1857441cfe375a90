"""The rules of `promtool check metrics` and of the text format for a whole page.

Names that begin with `pulsar_` are Pulsar's, so the rules about names and labels do not apply to them.
"""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

_OF_PULSAR = ("pulsar_", "topic_load_failed")
_ABBREVIATED = frozenset(("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"))
_NOT_BASE = frozenset(
    ("milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days", "kilobytes", "megabytes", "bits")
)
_TYPES = ("counter", "gauge", "histogram", "summary")
_SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("", "_count", "_sum")}
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"')
_CAMEL_CASE = re.compile(r"[a-z][A-Z]")


def problems(page: str) -> list[str]:
    """Return one line for each problem of the page."""
    found: list[str] = []
    families: dict[str, str] = {}
    name = kind = helped = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            helped, _, meaning = line.removeprefix("# HELP ").partition(" ")
            if not meaning.strip():
                found.append(f"{helped}: HELP says nothing")
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            if name in families:
                found.append(f"{name}: the family is on the page twice")
            if helped != name:
                found.append(f"{name}: no HELP in front of TYPE")
            families[name] = kind
            found += _of_name(name, kind)
        else:
            sample = _SAMPLE.fullmatch(line)
            if sample is None:
                found.append(f"not a sample: {line[:100]}")
            elif sample[1] not in {name + suffix for suffix in _SUFFIXES.get(kind, ("",))}:
                found.append(f"{sample[1]}: a sample outside of its family, behind {name}")
            else:
                found += _of_labels(name, kind, _LABEL.findall(sample[2] or ""))
    for _ in text_string_to_metric_families(page):
        pass  # raises ValueError for a page that the client library cannot parse
    return sorted(set(found))


def _of_name(name: str, kind: str) -> list[str]:
    found = []
    if kind not in _TYPES:
        found.append(f"{name}: unknown type {kind}")
    if name.endswith("_total") != (kind == "counter"):
        found.append(f"{name}: _total and the type counter go together, this is a {kind}")
    if name.startswith(_OF_PULSAR):
        return found
    words = name.split("_")
    if name.endswith(("_count", "_sum", "_bucket")) and kind not in _SUFFIXES:
        found.append(f"{name}: the suffix is of histograms and summaries")
    if ":" in name or _CAMEL_CASE.search(name):
        found.append(f"{name}: not in snake_case")
    if set(words) & _ABBREVIATED:
        found.append(f"{name}: an abbreviated unit")
    if set(words) & _NOT_BASE:
        found.append(f"{name}: not in a base unit")
    if set(words) & set(_TYPES):
        found.append(f"{name}: the type is part of the name")
    return found


def _of_labels(name: str, kind: str, labels: list[str]) -> list[str]:
    if len(labels) != len(set(labels)):
        return [f"{name}: a label is there twice"]
    if name.startswith("pulsar_"):
        return []
    found = [f"{name}: label {label} is not in snake_case" for label in labels if _CAMEL_CASE.search(label)]
    if ("le" in labels and kind != "histogram") or ("quantile" in labels and kind != "summary"):
        found.append(f"{name}: le and quantile are labels of histograms and summaries")
    return found
