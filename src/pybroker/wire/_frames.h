/* Frames and entries as bytes, without Python objects: the part of the compiled core that reads input of clients and bookies.
 *
 * Each function decides the usual encodings and returns 0 for any other input. The pure Python code then decides, so this file never
 * rejects input. Invariants:
 *   - no byte outside of the spans in the arguments is read;
 *   - a length is compared with the remaining bytes before it is added to a position;
 *   - no loop runs longer than the bytes of its span.
 *
 * `tests/fuzz/frames_harness.c` runs these functions on mutated frames under the sanitizers of the compiler: `make sanitize`.
 */

#ifndef PYBROKER_FRAMES_H
#define PYBROKER_FRAMES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__)) && !defined(PYBROKER_SOFTWARE_CRC32C)
#define HAS_SSE42_PATH 1
#include <nmmintrin.h>
#else
#define HAS_SSE42_PATH 0
#endif

#define HEAD_BYTES 16                /* of a frame: two sizes, and the start of the command */
#define CHECKSUM_BYTES 6             /* magic number and CRC32C */
#define MIN_MESSAGE_BYTES 10         /* checksum and size of the metadata */
#define LARGE_COMMAND_BYTES (16 * 1024)
#define LARGE_METADATA_BYTES 1024    /* protobuf parses larger metadata */
#define LEAST_MESSAGE_BYTES 6        /* of a message in a batch */

/* --- CRC32C --------------------------------------------------------------------------------------------------------------- */

#define POLYNOMIAL 0x82F63B78u /* Castagnoli, reflected */
#define SHORT_LANE 256
#define LONG_LANE 4096

static uint32_t crc_tables[8][256];       /* tables[k][v]: the effect of byte v, followed by k zero bytes */
static uint32_t short_shift[4][256];      /* the effect of SHORT_LANE zero bytes on each byte of a checksum */
static uint32_t long_shift[4][256];

static inline uint32_t big32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t big64(const uint8_t *p) { return (uint64_t)big32(p) << 32 | big32(p + 4); }

static inline uint32_t little32(const uint8_t *p) {
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

static inline void put_big32(uint8_t *out, uint32_t value) {
    out[0] = (uint8_t)(value >> 24);
    out[1] = (uint8_t)(value >> 16);
    out[2] = (uint8_t)(value >> 8);
    out[3] = (uint8_t)value;
}

static inline void put_big64(uint8_t *out, uint64_t value) {
    put_big32(out, (uint32_t)(value >> 32));
    put_big32(out + 4, (uint32_t)value);
}

static inline uint32_t shifted(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^ table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
}

/* `lane` is a power of two: the shift by one byte, doubled. */
static void make_shift(uint32_t table[4][256], unsigned lane) {
    uint32_t basis[32], doubled[32];
    for (unsigned bit = 0; bit < 32; bit++) {
        uint32_t crc = (uint32_t)1 << bit;
        basis[bit] = crc_tables[0][crc & 0xFF] ^ crc >> 8;
    }
    for (unsigned bytes = 1; bytes < lane; bytes *= 2) {
        for (unsigned bit = 0; bit < 32; bit++) {
            doubled[bit] = 0;
            for (unsigned other = 0; other < 32; other++) {
                if (basis[bit] >> other & 1) {
                    doubled[bit] ^= basis[other];
                }
            }
        }
        memcpy(basis, doubled, sizeof basis);
    }
    for (unsigned byte = 0; byte < 4; byte++) {
        for (unsigned value = 0; value < 256; value++) {
            table[byte][value] = 0;
            for (unsigned bit = 0; bit < 8; bit++) {
                if (value >> bit & 1) {
                    table[byte][value] ^= basis[byte * 8 + bit];
                }
            }
        }
    }
}

static void make_crc_tables(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        }
        crc_tables[0][value] = crc;
    }
    for (int zeros = 1; zeros < 8; zeros++) {
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t crc = crc_tables[zeros - 1][value];
            crc_tables[zeros][value] = crc_tables[0][crc & 0xFF] ^ crc >> 8;
        }
    }
    make_shift(short_shift, SHORT_LANE);
    make_shift(long_shift, LONG_LANE);
}

static uint32_t software_crc32c(uint32_t crc, const uint8_t *p, size_t size) {
    crc = ~crc;
    while (size >= 8) {
        uint32_t low = crc ^ little32(p), high = little32(p + 4);
        crc = crc_tables[7][low & 0xFF] ^ crc_tables[6][low >> 8 & 0xFF] ^ crc_tables[5][low >> 16 & 0xFF] ^
              crc_tables[4][low >> 24] ^ crc_tables[3][high & 0xFF] ^ crc_tables[2][high >> 8 & 0xFF] ^
              crc_tables[1][high >> 16 & 0xFF] ^ crc_tables[0][high >> 24];
        p += 8;
        size -= 8;
    }
    while (size--) {
        crc = crc_tables[0][(crc ^ *p++) & 0xFF] ^ crc >> 8;
    }
    return ~crc;
}

#if HAS_SSE42_PATH
static inline uint64_t load64(const uint8_t *p) {
    uint64_t value;
    memcpy(&value, p, 8);
    return value;
}

/* Three lanes at a time, because the instruction has a latency of three cycles. */
__attribute__((target("sse4.2"))) static inline const uint8_t *three_lanes(
    uint64_t *crc, const uint8_t *p, size_t lane, uint32_t shift[4][256]) {
    uint64_t first = *crc, second = 0, third = 0;
    for (const uint8_t *end = p + lane; p < end; p += 8) {
        first = _mm_crc32_u64(first, load64(p));
        second = _mm_crc32_u64(second, load64(p + lane));
        third = _mm_crc32_u64(third, load64(p + 2 * lane));
    }
    second ^= shifted(shift, (uint32_t)first);
    *crc = third ^ shifted(shift, (uint32_t)second);
    return p + 2 * lane;
}

__attribute__((target("sse4.2"))) static uint32_t sse42_crc32c(uint32_t start, const uint8_t *p, size_t size) {
    uint64_t crc = (uint32_t)~start;
    const uint8_t *end = p + size;
    while ((size_t)(end - p) >= 3 * LONG_LANE) {
        p = three_lanes(&crc, p, LONG_LANE, long_shift);
    }
    while ((size_t)(end - p) >= 3 * SHORT_LANE) {
        p = three_lanes(&crc, p, SHORT_LANE, short_shift);
    }
    for (; end - p >= 8; p += 8) {
        crc = _mm_crc32_u64(crc, load64(p));
    }
    for (; p < end; p++) {
        crc = _mm_crc32_u8((uint32_t)crc, *p);
    }
    return ~(uint32_t)crc;
}
#endif

static uint32_t (*crc32c)(uint32_t, const uint8_t *, size_t) = software_crc32c;
/* For larger messages, the tables are slower than the library of the Python code, which has instructions of other processors. */
static size_t max_checked_bytes = 4096;

/* Call once before any other function. Returns the name of the implementation of CRC32C that this processor runs. */
static const char *init_crc32c(void) {
    make_crc_tables();
#if HAS_SSE42_PATH
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) {
        crc32c = sse42_crc32c;
        max_checked_bytes = SIZE_MAX;
        return "sse4.2";
    }
#endif
    return "software";
}

/* --- Protobuf ------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *pos;
    const uint8_t *end;
} Cursor;

/* At most ten bytes; bits above 64 are dropped, as in `varint.decode`. */
static inline int read_varint(Cursor *cursor, uint64_t *value) {
    uint64_t result = 0;
    const uint8_t *pos = cursor->pos;
    for (int shift = 0; shift < 70 && pos < cursor->end; shift += 7) {
        uint8_t byte = *pos++;
        result |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            cursor->pos = pos;
            *value = result;
            return 1;
        }
    }
    return 0;
}

static inline int read_span(Cursor *cursor, Cursor *span) {
    uint64_t size;
    if (!read_varint(cursor, &size) || size > (uint64_t)(cursor->end - cursor->pos)) {
        return 0;
    }
    span->pos = cursor->pos;
    span->end = cursor->pos += size;
    return 1;
}

static int skip_field(Cursor *cursor, uint64_t tag) {
    uint64_t ignored;
    Cursor span;
    switch (tag & 7) {
    case 0:
        return read_varint(cursor, &ignored);
    case 2:
        return read_span(cursor, &span);
    case 1:
    case 5: {
        ptrdiff_t size = (tag & 7) == 1 ? 8 : 4;
        if (cursor->end - cursor->pos < size) {
            return 0;
        }
        cursor->pos += size;
        return 1;
    }
    default:
        return 0;
    }
}

static inline int varint_size(uint64_t value) {
    int size = 1;
    while (value >= 0x80) {
        value >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *put_varint(uint8_t *out, uint64_t value) {
    while (value >= 0x80) {
        *out++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *out++ = (uint8_t)value;
    return out;
}

static int has_byte(Cursor span, uint8_t byte) {
    return span.pos < span.end && memchr(span.pos, byte, (size_t)(span.end - span.pos)) != NULL;
}

/* The tag of a field above 15 has two bytes: one search usually shows that the field is missing. */
static int has_tag(Cursor span, uint8_t first, uint8_t second) {
    while (span.end - span.pos >= 2) {
        const uint8_t *at = memchr(span.pos, first, (size_t)(span.end - span.pos) - 1);
        if (at == NULL) {
            return 0;
        }
        if (at[1] == second) {
            return 1;
        }
        span.pos = at + 1;
    }
    return 0;
}

/* --- Metadata of an entry ------------------------------------------------------------------------------------------------- */

/* The MessageMetadata of an entry, after the broker's prefix and the checksum. 0: it is longer than the entry. */
static int metadata_span(Cursor entry, Cursor *metadata) {
    const uint8_t *start = entry.pos;
    size_t size = (size_t)(entry.end - start);
    if (size >= 6 && start[0] == 0x0E && start[1] == 0x02) {
        uint32_t prefix = big32(start + 2);
        if (prefix > size - 6) {
            return 0;
        }
        start += 6 + (size_t)prefix;
        size -= 6 + (size_t)prefix;
    }
    if (size >= CHECKSUM_BYTES && start[0] == 0x0E && start[1] == 0x01) {
        start += CHECKSUM_BYTES;
        size -= CHECKSUM_BYTES;
    }
    if (size < 4 || big32(start) > size - 4) {
        return 0;
    }
    metadata->pos = start + 4;
    metadata->end = metadata->pos + big32(start);
    return 1;
}

/* num_messages_in_batch; 1 without it. */
static int message_count(Cursor metadata, int64_t *count) {
    uint64_t tag, value = 1;
    if (!has_byte(metadata, 0x58)) {
        *count = 1;
        return 1;
    }
    if (metadata.end - metadata.pos > LARGE_METADATA_BYTES) {
        return 0;
    }
    while (metadata.pos < metadata.end) {
        if (!read_varint(&metadata, &tag) || !(tag == 0x58 ? read_varint(&metadata, &value) : skip_field(&metadata, tag))) {
            return 0;
        }
    }
    *count = (int64_t)value;
    return value > 0 && value < (uint64_t)1 << 31;
}

/* deliver_at_time in milliseconds since 1970; 0 without it, or if it is negative. */
static int deliver_at(Cursor metadata, uint64_t *time_ms) {
    uint64_t tag;
    *time_ms = 0;
    if (!has_tag(metadata, 0x98, 0x01)) {
        return 1;
    }
    if (metadata.end - metadata.pos > LARGE_METADATA_BYTES) {
        return 0;
    }
    while (metadata.pos < metadata.end) {
        if (!read_varint(&metadata, &tag)) {
            return 0;
        }
        if (tag == 19 << 3) {
            if (!read_varint(&metadata, time_ms)) {
                return 0;
            }
            if (*time_ms >> 63) {
                *time_ms = 0;
            }
            return 1;
        }
        if (!skip_field(&metadata, tag)) {
            return 0;
        }
    }
    return 1;
}

static int has_marker(Cursor metadata) { return has_tag(metadata, 0xA0, 0x01); }
static int has_chunk(Cursor metadata) { return has_tag(metadata, 0xD2, 0x01); }

static inline uint32_t rotated(uint32_t value, int bits) { return value << bits | value >> (32 - bits); }

/* Murmur3, 32 bits, seed 0, without its sign, as Pulsar hashes keys. */
static uint32_t murmur3(const uint8_t *p, size_t size) {
    uint32_t hash = 0, block = 0;
    size_t left = size;
    for (; left >= 4; left -= 4, p += 4) {
        block = rotated(little32(p) * 0xCC9E2D51u, 15) * 0x1B873593u;
        hash = rotated(hash ^ block, 13) * 5 + 0xE6546B64u;
    }
    block = 0;
    for (size_t at = left; at > 0; at--) {
        block = block << 8 | p[at - 1];
    }
    if (left) {
        hash ^= rotated(block * 0xCC9E2D51u, 15) * 0x1B873593u;
    }
    hash ^= (uint32_t)size;
    hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
    hash = (hash ^ hash >> 13) * 0xC2B2AE35u;
    return (hash ^ hash >> 16) & 0x7FFFFFFF;
}

/* The hash of the sticky key: of the ordering key, else of the key, else of producer name and sequence id. */
static int key_hash(Cursor metadata, uint32_t *hash) {
    Cursor key = {NULL, NULL}, name = {NULL, NULL}, span;
    int has_sequence_id = 0;
    uint64_t tag, sequence_id = 0;
    uint8_t text[LARGE_METADATA_BYTES + 1 + 20];
    if (metadata.end - metadata.pos > LARGE_METADATA_BYTES) {
        return 0;
    }
    while (metadata.pos < metadata.end) {
        if (!read_varint(&metadata, &tag)) {
            return 0;
        }
        if ((tag & 7) == 2) {
            if (!read_span(&metadata, &span)) {
                return 0;
            }
            if (tag == (18 << 3 | 2)) {
                *hash = murmur3(span.pos, (size_t)(span.end - span.pos));
                return 1;
            }
            if (tag == (6 << 3 | 2)) {
                key = span;
            } else if (tag == (1 << 3 | 2)) {
                name = span;
            }
        } else if (tag == 17 << 3) {
            if (metadata.pos == metadata.end || *metadata.pos != 0) {
                return 0; /* the key is encoded in Base64 */
            }
            metadata.pos++; /* the Java client writes `false` */
        } else if (tag == 2 << 3) {
            if (!read_varint(&metadata, &sequence_id)) {
                return 0;
            }
            has_sequence_id = 1;
        } else if (!skip_field(&metadata, tag)) {
            return 0;
        }
    }
    if (key.pos != NULL) {
        *hash = murmur3(key.pos, (size_t)(key.end - key.pos));
        return 1;
    }
    if (name.pos == NULL || !has_sequence_id) {
        return 0;
    }
    size_t size = (size_t)(name.end - name.pos);
    memcpy(text, name.pos, size);
    text[size++] = '-';
    uint8_t digits[20];
    int count = 0;
    do {
        digits[count++] = (uint8_t)('0' + sequence_id % 10);
        sequence_id /= 10;
    } while (sequence_id);
    while (count) {
        text[size++] = digits[--count];
    }
    *hash = murmur3(text, size);
    return 1;
}

/* --- Frames --------------------------------------------------------------------------------------------------------------- */

typedef struct {
    Cursor command; /* the message of the command */
    Cursor rest;    /* the bytes after the command */
} Frame;

/* A whole frame at the start of `data` with a command of this type. */
static int read_frame(Cursor data, uint64_t max_frame_bytes, uint8_t type, uint8_t tag, Frame *frame) {
    const uint8_t *p = data.pos;
    if (data.end - p < HEAD_BYTES) {
        return 0;
    }
    uint32_t total = big32(p), size = big32(p + 4);
    if (total > max_frame_bytes || total > (uint64_t)(data.end - p) - 4 || size < 4 || size > LARGE_COMMAND_BYTES ||
        total < 4 || size > total - 4 || p[8] != 0x08 || p[9] != type || p[10] != tag) {
        return 0;
    }
    Cursor command = {p + 11, p + 8 + size};
    if (!read_span(&command, &frame->command) || command.pos != command.end) {
        return 0;
    }
    frame->rest.pos = command.end;
    frame->rest.end = p + 4 + total;
    return 1;
}

typedef struct {
    uint64_t producer_id, sequence_id, highest_sequence_id; /* highest 0: none */
    int64_t message_count;
    Cursor message; /* the entry to store */
} Send;

/* A usual SEND: no transaction, chunk or marker, with a correct checksum, and not too many messages for its size.
 * `only_producer`: NULL, or the only producer id that is accepted. The checksum comes last, because it costs most. */
static int read_send(Cursor data, uint64_t max_frame_bytes, int64_t max_batch_messages, const uint64_t *only_producer,
                     Send *send) {
    Frame frame;
    Cursor metadata;
    uint64_t ignored;
    int fields = 0;
    if (!read_frame(data, max_frame_bytes, 6, 0x32, &frame)) {
        return 0;
    }
    send->producer_id = send->highest_sequence_id = 0;
    for (Cursor *command = &frame.command; command->pos < command->end;) {
        int is_read;
        switch (*command->pos++) {
        case 0x08:
            is_read = read_varint(command, &send->producer_id);
            fields |= 1;
            break;
        case 0x10:
            is_read = read_varint(command, &send->sequence_id);
            fields |= 2;
            break;
        case 0x18: /* num_messages: the entry's metadata has the number */
            is_read = read_varint(command, &ignored);
            break;
        case 0x30:
            is_read = read_varint(command, &send->highest_sequence_id);
            break;
        default:
            is_read = 0;
        }
        if (!is_read) {
            return 0;
        }
    }
    if (only_producer != NULL && send->producer_id != *only_producer) {
        return 0;
    }
    const uint8_t *p = frame.rest.pos;
    size_t size = (size_t)(frame.rest.end - p);
    if (fields != 3 || size < MIN_MESSAGE_BYTES || size > max_checked_bytes || p[0] != 0x0E || p[1] != 0x01 || big32(p + 6) > size - MIN_MESSAGE_BYTES) {
        return 0;
    }
    metadata.pos = p + MIN_MESSAGE_BYTES;
    metadata.end = metadata.pos + big32(p + 6);
    if (!message_count(metadata, &send->message_count) || has_marker(metadata)) {
        return 0;
    }
    if (send->message_count > 1 && (send->message_count > max_batch_messages ||
                                    send->message_count * LEAST_MESSAGE_BYTES > frame.rest.end - metadata.end)) {
        return 0;
    }
    if (send->message_count > max_batch_messages || crc32c(0, p + CHECKSUM_BYTES, size - CHECKSUM_BYTES) != big32(p + 2)) {
        return 0;
    }
    send->message = frame.rest;
    return 1;
}

/* A MessageIdData without ack set. */
static int read_message_id(Cursor id, uint64_t *ledger_id, uint64_t *entry_id) {
    int fields = 0;
    uint64_t ignored;
    while (id.pos < id.end) {
        int is_read;
        switch (*id.pos++) {
        case 0x08:
            is_read = read_varint(&id, ledger_id);
            fields |= 1;
            break;
        case 0x10:
            is_read = read_varint(&id, entry_id);
            fields |= 2;
            break;
        case 0x18: /* partition, batch index, batch size */
        case 0x20:
        case 0x30:
            is_read = read_varint(&id, &ignored);
            break;
        default:
            is_read = 0;
        }
        if (!is_read) {
            return 0;
        }
    }
    return fields == 3;
}

typedef struct {
    uint64_t consumer_id;
    Cursor ids;    /* the fields of the command, for next_ack_id */
    Cursor rest;   /* the data after the frame */
} Ack;

/* The next acknowledged entry of a usual ACK. 0: no further one. */
static int next_ack_id(Cursor *fields, uint64_t *ledger_id, uint64_t *entry_id) {
    uint64_t ignored;
    Cursor id;
    while (fields->pos < fields->end) {
        uint8_t tag = *fields->pos++;
        if (tag == 0x1A) {
            return read_span(fields, &id) && read_message_id(id, ledger_id, entry_id);
        }
        if (!read_varint(fields, &ignored)) {
            return 0;
        }
    }
    return 0;
}

/* A usual ACK: individual, of whole entries, without receipt, transaction and error. */
static int read_ack(Cursor data, uint64_t max_frame_bytes, Ack *ack) {
    Frame frame;
    Cursor id;
    uint64_t ledger_id, entry_id, type = 1;
    int fields = 0;
    if (!read_frame(data, max_frame_bytes, 10, 0x52, &frame) || frame.rest.pos != frame.rest.end) {
        return 0;
    }
    ack->ids = frame.command;
    ack->rest.pos = frame.rest.end;
    ack->rest.end = data.end;
    for (Cursor *command = &frame.command; command->pos < command->end;) {
        int is_read;
        switch (*command->pos++) {
        case 0x08:
            is_read = read_varint(command, &ack->consumer_id);
            fields |= 1;
            break;
        case 0x10:
            is_read = read_varint(command, &type);
            break;
        case 0x1A:
            is_read = read_span(command, &id) && read_message_id(id, &ledger_id, &entry_id);
            fields |= 2;
            break;
        default:
            is_read = 0;
        }
        if (!is_read) {
            return 0;
        }
    }
    return fields == 3 && type == 0;
}

/* A usual FLOW, as the message of its command. */
static int read_flow(Cursor command, uint64_t *consumer_id, uint32_t *permits) {
    uint64_t value = 0;
    int fields = 0;
    *consumer_id = 0;
    while (command.pos < command.end) {
        int is_read;
        switch (*command.pos++) {
        case 0x08:
            is_read = read_varint(&command, consumer_id);
            fields |= 1;
            break;
        case 0x10:
            is_read = read_varint(&command, &value);
            fields |= 2;
            break;
        default:
            is_read = 0;
        }
        if (!is_read) {
            return 0;
        }
    }
    *permits = (uint32_t)value;
    return fields == 3 && *permits != 0;
}

/* --- BookKeeper ----------------------------------------------------------------------------------------------------------- */

#define LEDGER_HEADER_BYTES 32
#define STORED_HEADER_BYTES (LEDGER_HEADER_BYTES + 4)

typedef struct {
    int64_t last_confirmed, length_bytes;
    Cursor payload;
} LedgerEntry;

/* An entry with a CRC32C digest as a bookie stores it: `ledger(8) entry(8) last_confirmed(8) length(8) crc(4) payload`. */
static int read_ledger_entry(Cursor stored, int64_t ledger_id, int64_t entry_id, LedgerEntry *entry) {
    const uint8_t *p = stored.pos;
    if (stored.end - p < STORED_HEADER_BYTES) {
        return 0;
    }
    entry->payload.pos = p + STORED_HEADER_BYTES;
    entry->payload.end = stored.end;
    entry->last_confirmed = (int64_t)big64(p + 16);
    entry->length_bytes = (int64_t)big64(p + 24);
    size_t size = (size_t)(stored.end - entry->payload.pos);
    return (int64_t)big64(p) == ledger_id && (int64_t)big64(p + 8) == entry_id && entry->last_confirmed >= -1 &&
           entry->last_confirmed < entry_id && entry->length_bytes >= 0 && (uint64_t)entry->length_bytes >= size &&
           crc32c(crc32c(0, p, LEDGER_HEADER_BYTES), entry->payload.pos, size) == big32(p + LEDGER_HEADER_BYTES);
}

#define ANSWER_BYTES 24 /* after the size: version and operation, code, ledger, entry */
#define ADD_ANSWER 0x02010000u
#define READ_ANSWER 0x02020000u

typedef struct {
    int operation;
    int32_t code;
    int64_t ledger_id, entry_id;
    Cursor body;
} Answer;

/* The whole answer to an ADD or a READ of protocol version 2 at the start of `data`. */
static int read_answer(Cursor data, uint64_t max_frame_bytes, Answer *answer) {
    const uint8_t *p = data.pos;
    if (data.end - p < 4 + ANSWER_BYTES) {
        return 0;
    }
    uint32_t size = big32(p), word = big32(p + 4);
    if (word == ADD_ANSWER ? size != ANSWER_BYTES
                           : word != READ_ANSWER || size < ANSWER_BYTES || size > max_frame_bytes ||
                                 size > (uint64_t)(data.end - p) - 4) {
        return 0;
    }
    answer->operation = word == ADD_ANSWER ? 1 : 2;
    answer->code = (int32_t)big32(p + 8);
    answer->ledger_id = (int64_t)big64(p + 12);
    answer->entry_id = (int64_t)big64(p + 20);
    answer->body.pos = p + 4 + ANSWER_BYTES;
    answer->body.end = p + 4 + size;
    return 1;
}

#endif
