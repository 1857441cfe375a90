"""The stored average rates of bundles and brokers, which the next leader continues, in the format of Java brokers.

`/loadbalance/bundle-data/<bundle>` has the averages of a bundle, `/loadbalance/broker-time-average/<broker>` their sums
over the bundles of a broker.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from pybroker.cluster.load_balance.bundle_averages import (
    LONG_SAMPLES,
    SHORT_SAMPLES,
    BundleAverage,
    RateAverage,
)

BUNDLE_DATA = "/loadbalance/bundle-data"
BROKER_AVERAGES = "/loadbalance/broker-time-average"


class _MessageData(msgspec.Struct, rename="camel"):
    max_samples: int = 0
    num_samples: int = 0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0


class _BundleData(msgspec.Struct, rename="camel"):
    short_term_data: _MessageData
    long_term_data: _MessageData
    topics: int = 0


class _BrokerAverages(msgspec.Struct, rename="camel"):
    short_term_msg_throughput_in: float = 0.0
    short_term_msg_throughput_out: float = 0.0
    short_term_msg_rate_in: float = 0.0
    short_term_msg_rate_out: float = 0.0
    long_term_msg_throughput_in: float = 0.0
    long_term_msg_throughput_out: float = 0.0
    long_term_msg_rate_in: float = 0.0
    long_term_msg_rate_out: float = 0.0


def bundle_path(bundle: str) -> str:
    return f"{BUNDLE_DATA}/{bundle}"


def broker_path(broker_id: str) -> str:
    return f"{BROKER_AVERAGES}/{broker_id}"


def encoded_bundle(average: BundleAverage) -> bytes:
    return msgspec.json.encode(
        _BundleData(_message_data(average.short), _message_data(average.long), average.topic_count)
    )


def decoded_bundle(value: bytes) -> BundleAverage | None:
    """Decode the average rates of a bundle; None for a document that cannot be used."""
    try:
        found = msgspec.json.decode(value, type=_BundleData)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    short, long = _average(found.short_term_data, SHORT_SAMPLES), _average(found.long_term_data, LONG_SAMPLES)
    return None if short is None or long is None else BundleAverage(short, long, max(0, found.topics))


def encoded_broker(sums: BundleAverage | None) -> bytes:
    """Encode the average rates of a broker. `sums`: the sums over its bundles; None for a broker that has just started."""
    if sums is None:
        return msgspec.json.encode(_BrokerAverages())
    short, long = sums.short, sums.long
    return msgspec.json.encode(
        _BrokerAverages(
            short.byte_rate_in,
            short.byte_rate_out,
            short.message_rate_in,
            short.message_rate_out,
            long.byte_rate_in,
            long.byte_rate_out,
            long.message_rate_in,
            long.message_rate_out,
        )
    )


def _message_data(average: RateAverage) -> _MessageData:
    return _MessageData(
        average.samples_limit,
        average.samples,
        average.byte_rate_in,
        average.byte_rate_out,
        average.message_rate_in,
        average.message_rate_out,
    )


def _average(found: _MessageData, samples_limit: int) -> RateAverage | None:
    rates = (found.msg_rate_in, found.msg_throughput_in, found.msg_rate_out, found.msg_throughput_out)
    if found.num_samples < 0 or not all(isfinite(each) and each >= 0 for each in rates):
        return None
    return RateAverage(samples_limit, min(found.num_samples, samples_limit), *rates)
