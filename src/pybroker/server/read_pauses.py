"""Reasons to pause reading from a connection, each a bit: reading resumes when none is set."""

from __future__ import annotations

# Plain integers, because the operators of an enum cost more than the work itself.
BUDGET = 1  # the connection's share of this event loop iteration is used up
PENDING_PUBLISHES = 2  # maxPendingPublishRequestsPerConnection
PUBLISH_MEMORY = 4  # maxMessagePublishBufferSizeInMB, broker-wide
OUTBOUND = 8  # the client does not read
REQUESTS = 16  # maxConcurrentRequestsPerConnection
PUBLISH_RATE = 32  # a message waits for a publish rate
MANY_IDS = 64  # an ACK or REDELIVER of thousands of ids is being processed
STOP = 128  # the broker is stopping
IN_WORDS = {
    PENDING_PUBLISHES: "the connection has reached its limit of unanswered messages (maxPendingPublishRequestsPerConnection)",
    PUBLISH_MEMORY: "the broker has reached its limit of unanswered messages (maxMessagePublishBufferSizeInMB)",
    OUTBOUND: "the client does not read the answers to its requests",
    REQUESTS: "the connection has reached its limit of concurrent requests (maxConcurrentRequestsPerConnection)",
    PUBLISH_RATE: "the client exceeds a publish rate",
    STOP: "the broker is stopping",
}
WAITS = REQUESTS | PUBLISH_RATE  # may last longer than the liveness timeout of a PING
