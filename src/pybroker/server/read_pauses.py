"""Why nothing is read from a connection for a while, each reason a bit: it is read again when none is left."""

from __future__ import annotations

# Why nothing is read from the socket at the moment: bits, as plain ints since an enum's operators cost more than the work.
BUDGET = 1  # the connection's share of this event loop iteration is used up
PENDING_PUBLISHES = 2  # maxPendingPublishRequestsPerConnection
PUBLISH_MEMORY = 4  # maxMessagePublishBufferSizeInMB, broker-wide
OUTBOUND = 8  # the client does not read
REQUESTS = 16  # maxConcurrentRequestsPerConnection
PUBLISH_RATE = 32  # a message waits until a limit on publishing lets it pass
MANY_IDS = 64  # an ACK or REDELIVER of thousands of ids is being worked off
STOP = 128  # the broker stops
IN_WORDS = {
    PENDING_PUBLISHES: "it has as many messages without a receipt as it may (maxPendingPublishRequestsPerConnection)",
    PUBLISH_MEMORY: "the broker has as many messages without a receipt as it may (maxMessagePublishBufferSizeInMB)",
    OUTBOUND: "it does not read the answers to what it asks",
    REQUESTS: "it has as many requests under way as it may (maxConcurrentRequestsPerConnection)",
    PUBLISH_RATE: "it publishes more than a limit lets pass",
    STOP: "the broker stops",
}
WAITS = REQUESTS | PUBLISH_RATE  # may last longer than a client takes to answer a PING
