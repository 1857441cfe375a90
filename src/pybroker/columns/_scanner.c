/* Entries to records: the compiled twin of python_scanner.py, which says what each function does.
 *
 * Whoever published wrote the bytes that are read here: nothing in them is trusted. What must hold:
 *   - nothing is read outside of the buffers that were handed in, and nothing written outside of the records;
 *   - every length is compared with what is left before it is added to anything;
 *   - no loop runs longer than the bytes, the records or the capacities that were handed in, and no memory is allocated for what the
 *     bytes claim.
 * Whatever Python hands in (places in records among it) is checked as well, so that a mistake there is an error and no crash.
 *
 * Only the stable ABI and the buffer protocol are used: no headers of numpy or Arrow. The lock of the interpreter is given back while
 * bytes are looked at.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if PY_BIG_ENDIAN
#error "records are little-endian; the scanner in plain Python is used instead"
#endif

#define LAYOUT_VERSION 1
#define MAX_SIZE INT32_MAX
#define LEAST_MESSAGE_BYTES 6
#define CHECKED_PROPERTIES 16

/* The records of scanner_layout.py. */
typedef struct {
    int64_t publish_time_ms, event_time_ms, sequence_id, index;
    int64_t metadata_at, payload_at, producer_name_at, replicated_from_at, key_at, ordering_key_at, schema_version_at, uuid_at;
    int64_t uncompressed_bytes;
    int32_t metadata_bytes, payload_bytes, producer_name_bytes, replicated_from_bytes, key_bytes, ordering_key_bytes;
    int32_t schema_version_bytes, uuid_bytes;
    int32_t message_count, compression, chunk_id, chunk_count, payload_source, flags, error, reserved;
} Entry;

typedef struct {
    int64_t event_time_ms, sequence_id, value_at, key_at, ordering_key_at;
    int32_t value_bytes, key_bytes, ordering_key_bytes, value_source, metadata_source, entry, batch_index, first_property;
    int32_t property_count, flags, error, reserved;
} Message;

typedef struct {
    int64_t key_at, value_at;
    int32_t key_bytes, value_bytes;
} Property;

typedef struct {
    int64_t entry, batch_index, pos;
} State;

_Static_assert(sizeof(Entry) == 13 * 8 + 16 * 4, "Entry has gaps");
_Static_assert(sizeof(Message) == 5 * 8 + 12 * 4, "Message has gaps");
_Static_assert(sizeof(Property) == 24, "Property has gaps");
_Static_assert(sizeof(State) == 24, "State has gaps");

enum {
    EVENT_TIME = 1,
    NULL_VALUE = 2,
    NULL_KEY = 4,
    KEY_IS_BASE64 = 8,
    PROPERTIES = 16,
    REPEATED_PROPERTIES = 32,
    INDEX = 64,
    BATCH = 128,
    ENCRYPTED = 256,
    MARKER = 512,
    SKIPPED = 1024
};

enum {
    WANTS_VALUE = 1,
    WANTS_KEY = 2,
    WANTS_ORDERING_KEY = 4,
    WANTS_PROPERTIES = 8,
    WANTS_PRODUCER_NAME = 16,
    WANTS_SCHEMA_VERSION = 32,
    WANTS_REPLICATED_FROM = 64
};

enum {
    NO_ERROR = 0,
    METADATA_TOO_LONG = 1,
    MALFORMED_METADATA = 2,
    MISSING_FIELD = 3,
    BAD_MESSAGE_COUNT = 4,
    TOO_MANY_MESSAGES = 5,
    BAD_CHUNK = 6,
    BATCH_TOO_SHORT = 7,
    MALFORMED_BATCH_METADATA = 8,
    MISSING_BATCH_FIELD = 9,
    BEYOND_SOURCE = 11
};

/* --- Protobuf ------------------------------------------------------------------------------------------------------------- */

/* A cursor over [pos, end); every function below answers 0 and says nothing of `pos` when the bytes do not fit. */
typedef struct {
    const uint8_t *pos;
    const uint8_t *end;
} Cursor;

static int read_long_varint(Cursor *cursor, uint64_t *value) {
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

static inline int read_varint(Cursor *cursor, uint64_t *value) {
    if (cursor->pos < cursor->end && *cursor->pos < 0x80) {
        *value = *cursor->pos++;
        return 1;
    }
    return read_long_varint(cursor, value);
}

/* A field of bytes whose tag was read: where it starts; its size. */
static inline int read_span(Cursor *cursor, const uint8_t **start, int32_t *size) {
    uint64_t length;
    if (!read_varint(cursor, &length) || length > (uint64_t)(cursor->end - cursor->pos)) {
        return 0;
    }
    *start = cursor->pos;
    *size = (int32_t)length; /* what is scanned is never longer than MAX_SIZE */
    cursor->pos += length;
    return 1;
}

static int skip_field(Cursor *cursor, uint64_t tag) {
    uint64_t ignored;
    const uint8_t *start;
    int32_t size;
    switch (tag & 7) {
    case 0:
        return read_varint(cursor, &ignored);
    case 1:
    case 5:
        size = (tag & 7) == 1 ? 8 : 4;
        if (cursor->end - cursor->pos < size) {
            return 0;
        }
        cursor->pos += size;
        return 1;
    case 2:
        return read_span(cursor, &start, &size);
    default:
        return 0;
    }
}

static inline int32_t signed32(uint64_t value) {
    return (int32_t)(uint32_t)value;
}

static inline int32_t with_flag(int32_t flags, int32_t flag, uint64_t value) {
    return value ? flags | flag : flags & ~flag;
}

static inline uint32_t read_size(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Nothing else in C parses stored entries. The vectors in tests/vectors/stored_entries.json test this code, its twin in plain Python,
 * pybroker/wire/stored_entry.py and the console. */

/* --- Entries -------------------------------------------------------------------------------------------------------------- */

static void fail_entry(Entry *entry, int32_t error) {
    memset(entry, 0, sizeof *entry);
    entry->producer_name_bytes = entry->replicated_from_bytes = entry->key_bytes = -1;
    entry->ordering_key_bytes = entry->schema_version_bytes = entry->uuid_bytes = -1;
    entry->message_count = 1;
    entry->error = error;
}

/* The index in BrokerEntryMetadata; 0 when there is none or it does not parse. */
static int broker_index(Cursor cursor, int64_t *index) {
    int found = 0;
    uint64_t tag, value;
    while (cursor.pos < cursor.end) {
        if (!read_varint(&cursor, &tag)) {
            return 0;
        }
        if (tag == 16) {
            if (!read_varint(&cursor, &value)) {
                return 0;
            }
            *index = (int64_t)value;
            found = 1;
        } else if (!skip_field(&cursor, tag)) {
            return 0;
        }
    }
    return found;
}

/* The fields of MessageMetadata; 0 when it does not parse. */
static int scan_metadata(const uint8_t *base, Cursor cursor, Entry *entry) {
    const uint8_t *start;
    uint64_t tag, value;
    int seen = 0;
    int32_t size;
    while (cursor.pos < cursor.end) {
        if (!read_varint(&cursor, &tag)) {
            return 0;
        }
#define SPAN(name)                                                                                                                 \
    if (!read_span(&cursor, &start, &entry->name##_bytes)) {                                                                       \
        return 0;                                                                                                                  \
    }                                                                                                                              \
    entry->name##_at = start - base;                                                                                               \
    break
#define VALUE                                                                                                                      \
    if (!read_varint(&cursor, &value)) {                                                                                           \
        return 0;                                                                                                                  \
    }
        switch (tag) {
        case 10:
            seen |= 1;
            SPAN(producer_name);
        case 16:
            VALUE
            entry->sequence_id = (int64_t)value;
            seen |= 2;
            break;
        case 24:
            VALUE
            entry->publish_time_ms = (int64_t)value;
            seen |= 4;
            break;
        case 34:
            if (!read_span(&cursor, &start, &size)) {
                return 0;
            }
            entry->flags |= PROPERTIES;
            break;
        case 42:
            SPAN(replicated_from);
        case 50:
            SPAN(key);
        case 64:
            VALUE
            if (signed32(value) >= 0 && signed32(value) <= 4) { /* protobuf passes over unknown ones */
                entry->compression = signed32(value);
            }
            break;
        case 72:
            VALUE
            entry->uncompressed_bytes = (uint32_t)value;
            break;
        case 88:
            VALUE
            entry->message_count = signed32(value);
            entry->flags |= BATCH;
            break;
        case 96:
            VALUE
            entry->event_time_ms = (int64_t)value;
            entry->flags |= EVENT_TIME;
            break;
        case 106:
            if (!read_span(&cursor, &start, &size)) {
                return 0;
            }
            entry->flags |= ENCRYPTED;
            break;
        case 130:
            SPAN(schema_version);
        case 136:
            VALUE
            entry->flags = with_flag(entry->flags, KEY_IS_BASE64, value);
            break;
        case 146:
            SPAN(ordering_key);
        case 160:
            VALUE
            entry->flags |= MARKER;
            break;
        case 200:
            VALUE
            entry->flags = with_flag(entry->flags, NULL_VALUE, value);
            break;
        case 210:
            SPAN(uuid);
        case 216:
            VALUE
            entry->chunk_count = signed32(value);
            break;
        case 232:
            VALUE
            entry->chunk_id = signed32(value);
            break;
        case 240:
            VALUE
            entry->flags = with_flag(entry->flags, NULL_KEY, value);
            break;
        default:
            if (!skip_field(&cursor, tag)) {
                return 0;
            }
        }
    }
    int is_chunk = entry->uuid_bytes > 0 && entry->chunk_count > 1;
    if (seen != 7) {
        entry->error = MISSING_FIELD;
    } else if ((entry->flags & BATCH) && entry->message_count < 1) {
        entry->error = BAD_MESSAGE_COUNT;
    } else if (is_chunk && (entry->chunk_id < 0 || entry->chunk_id >= entry->chunk_count)) {
        entry->error = BAD_CHUNK;
    }
    if (!is_chunk) {
        entry->chunk_id = entry->chunk_count = 0;
    }
    return 1;
}

static void scan_entry(const uint8_t *base, int64_t data_bytes, int64_t start, int64_t length, Entry *entry) {
    fail_entry(entry, NO_ERROR);
    if (start < 0 || length < 0 || start > data_bytes || length > data_bytes - start || length > MAX_SIZE) {
        entry->error = BEYOND_SOURCE;
        return;
    }
    const uint8_t *pos = base + start, *end = pos + length;
    int64_t index = 0;
    int32_t flags = 0;
    if (length >= 2 && pos[0] == 0x0E && pos[1] == 0x02) {
        const uint8_t *fields_end = end;
        if (length >= 6) {
            uint32_t size = read_size(pos + 2);
            if (size < (uint64_t)(end - pos - 6)) {
                fields_end = pos + 6 + size;
            }
            if (broker_index((Cursor){pos + 6, fields_end}, &index)) {
                flags = INDEX;
            } else {
                index = 0;
            }
        }
        pos = fields_end;
    }
    if (end - pos >= 2 && pos[0] == 0x0E && pos[1] == 0x01) {
        pos = end - pos >= 6 ? pos + 6 : end;
    }
    if (end - pos < 4) {
        entry->error = METADATA_TOO_LONG;
        return;
    }
    uint32_t size = read_size(pos);
    pos += 4;
    if (size > (uint64_t)(end - pos)) {
        entry->error = METADATA_TOO_LONG;
        return;
    }
    int64_t metadata_at = pos - base;
    entry->producer_name_at = entry->replicated_from_at = entry->key_at = entry->ordering_key_at = metadata_at;
    entry->schema_version_at = entry->uuid_at = metadata_at;
    entry->flags = flags;
    entry->index = index;
    entry->metadata_at = metadata_at;
    entry->metadata_bytes = (int32_t)size;
    entry->payload_at = metadata_at + size;
    entry->payload_bytes = (int32_t)(end - pos - size);
    if (!scan_metadata(base, (Cursor){pos, pos + size}, entry)) {
        fail_entry(entry, MALFORMED_METADATA);
    }
}

/* --- Messages ------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const Py_buffer *sources;
    Py_ssize_t source_count;
    const Entry *entries;
    Py_ssize_t entry_count;
    int wanted;
    int64_t left_bytes;
    Message *messages;
    Py_ssize_t message_capacity, message_count;
    Property *properties;
    Py_ssize_t property_capacity, property_count;
    Py_ssize_t needed_properties;
} Scan;

enum { ADDED, FULL };
enum { FOUND, MALFORMED, MISSING };

static int is_inside(const Scan *scan, int32_t source, int64_t at, int64_t size) {
    if (source < 0 || source >= scan->source_count || at < 0 || size < 0) {
        return 0;
    }
    int64_t there = scan->sources[source].len;
    return at <= there && size <= there - at;
}

static int add_message(Scan *scan, const Message *message, int64_t size_bytes) {
    if (scan->message_count == scan->message_capacity || (scan->message_count && size_bytes > scan->left_bytes)) {
        return FULL;
    }
    if (message->property_count > scan->property_capacity - scan->property_count) {
        if (!scan->message_count) {
            scan->needed_properties = message->property_count;
        }
        return FULL;
    }
    scan->left_bytes -= size_bytes;
    scan->messages[scan->message_count++] = *message;
    scan->property_count += message->property_count;
    return ADDED;
}

static int add_error(Scan *scan, Py_ssize_t number, int32_t batch_index, int32_t error) {
    Message message;
    memset(&message, 0, sizeof message);
    message.value_bytes = message.key_bytes = message.ordering_key_bytes = -1;
    message.entry = (int32_t)number;
    message.batch_index = batch_index;
    message.error = error;
    return add_message(scan, &message, 0);
}

static int repeats_a_name(const uint8_t *base, const Property *properties, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        for (int32_t j = 0; j < i; j++) {
            if (properties[i].key_bytes == properties[j].key_bytes &&
                memcmp(base + properties[i].key_at, base + properties[j].key_at, (size_t)properties[i].key_bytes) == 0) {
                return 1;
            }
        }
    }
    return 0;
}

/* The KeyValues in the metadata at `cursor`, behind the properties that are there; `message` learns how many and where. Those for
 * which there is no room are counted only: add_message refuses the message then. */
static int scan_properties(Scan *scan, const uint8_t *base, Cursor cursor, uint64_t properties_tag, Message *message, int64_t *size_bytes) {
    Property *found = scan->properties + scan->property_count;
    Py_ssize_t room = scan->property_capacity - scan->property_count;
    int32_t count = 0;
    uint64_t tag;
    while (cursor.pos < cursor.end) {
        const uint8_t *start;
        int32_t size;
        if (!read_varint(&cursor, &tag)) {
            return MALFORMED;
        }
        if (tag != properties_tag) {
            if (!skip_field(&cursor, tag)) {
                return MALFORMED;
            }
            continue;
        }
        if (!read_span(&cursor, &start, &size)) {
            return MALFORMED;
        }
        Cursor inner = {start, start + size};
        Property property = {0, 0, -1, -1};
        while (inner.pos < inner.end) {
            if (!read_varint(&inner, &tag)) {
                return MALFORMED;
            }
            if (tag == 10) {
                if (!read_span(&inner, &start, &property.key_bytes)) {
                    return MALFORMED;
                }
                property.key_at = start - base;
            } else if (tag == 18) {
                if (!read_span(&inner, &start, &property.value_bytes)) {
                    return MALFORMED;
                }
                property.value_at = start - base;
            } else if (!skip_field(&inner, tag)) {
                return MALFORMED;
            }
        }
        if (property.key_bytes < 0 || property.value_bytes < 0) {
            return MISSING;
        }
        if (count < room) {
            found[count] = property;
        }
        count++;
        *size_bytes += (int64_t)property.key_bytes + property.value_bytes;
    }
    message->property_count = count;
    if (count) {
        message->flags |= PROPERTIES;
    }
    if (count > CHECKED_PROPERTIES || (count <= room && repeats_a_name(base, found, count))) {
        message->flags |= REPEATED_PROPERTIES;
    }
    return FOUND;
}

static int64_t size_of(const Scan *scan, const Entry *entry, const Message *message) {
    int64_t size = 0;
    if ((scan->wanted & WANTS_PRODUCER_NAME) && entry->producer_name_bytes > 0) {
        size += entry->producer_name_bytes;
    }
    if ((scan->wanted & WANTS_SCHEMA_VERSION) && entry->schema_version_bytes > 0) {
        size += entry->schema_version_bytes;
    }
    if ((scan->wanted & WANTS_REPLICATED_FROM) && entry->replicated_from_bytes > 0) {
        size += entry->replicated_from_bytes;
    }
    if ((scan->wanted & WANTS_VALUE) && message->value_bytes > 0) {
        size += message->value_bytes;
    }
    if ((scan->wanted & WANTS_KEY) && message->key_bytes > 0) {
        size += message->key_bytes;
    }
    if ((scan->wanted & WANTS_ORDERING_KEY) && message->ordering_key_bytes > 0) {
        size += message->ordering_key_bytes;
    }
    return size;
}

static int scan_single(Scan *scan, Py_ssize_t number) {
    const Entry *entry = &scan->entries[number];
    if (!is_inside(scan, entry->payload_source, entry->payload_at, entry->payload_bytes) ||
        !is_inside(scan, 0, entry->metadata_at, entry->metadata_bytes)) {
        return add_error(scan, number, -1, BEYOND_SOURCE);
    }
    Message message;
    int64_t size_bytes = 0;
    memset(&message, 0, sizeof message);
    message.flags = entry->flags & (EVENT_TIME | NULL_VALUE | NULL_KEY | KEY_IS_BASE64);
    if ((scan->wanted & WANTS_PROPERTIES) && (entry->flags & PROPERTIES)) {
        const uint8_t *base = scan->sources[0].buf, *start = base + entry->metadata_at;
        switch (scan_properties(scan, base, (Cursor){start, start + entry->metadata_bytes}, 34, &message, &size_bytes)) {
        case MALFORMED:
            return add_error(scan, number, -1, MALFORMED_METADATA);
        case MISSING:
            return add_error(scan, number, -1, MISSING_FIELD);
        }
    }
    message.event_time_ms = entry->event_time_ms;
    message.sequence_id = entry->sequence_id;
    message.value_at = entry->payload_at;
    message.key_at = entry->key_at;
    message.ordering_key_at = entry->ordering_key_at;
    message.value_bytes = message.flags & NULL_VALUE ? -1 : entry->payload_bytes;
    message.key_bytes = message.flags & NULL_KEY ? -1 : entry->key_bytes;
    message.ordering_key_bytes = entry->ordering_key_bytes;
    message.value_source = entry->payload_source;
    message.entry = (int32_t)number;
    message.batch_index = -1;
    message.first_property = (int32_t)scan->property_count;
    return add_message(scan, &message, size_bytes + size_of(scan, entry, &message));
}

/* The fields of SingleMessageMetadata; FOUND, MALFORMED or MISSING. `value_bytes` is as it is claimed. */
static int scan_single_metadata(const uint8_t *base, Cursor cursor, Message *message, int *has_properties, int *is_left_out) {
    const uint8_t *start;
    uint64_t tag, value;
    int32_t size;
    int has_size = 0;
    while (cursor.pos < cursor.end) {
        if (!read_varint(&cursor, &tag)) {
            return MALFORMED;
        }
#undef VALUE
#define VALUE                                                                                                                      \
    if (!read_varint(&cursor, &value)) {                                                                                           \
        return MALFORMED;                                                                                                          \
    }
        switch (tag) {
        case 10:
            if (!read_span(&cursor, &start, &size)) {
                return MALFORMED;
            }
            *has_properties = 1;
            break;
        case 18:
            if (!read_span(&cursor, &start, &message->key_bytes)) {
                return MALFORMED;
            }
            message->key_at = start - base;
            break;
        case 24:
            VALUE
            message->value_bytes = signed32(value);
            has_size = 1;
            break;
        case 32:
            VALUE
            *is_left_out = value != 0;
            break;
        case 40:
            VALUE
            message->event_time_ms = (int64_t)value;
            message->flags |= EVENT_TIME;
            break;
        case 48:
            VALUE
            message->flags = with_flag(message->flags, KEY_IS_BASE64, value);
            break;
        case 58:
            if (!read_span(&cursor, &start, &message->ordering_key_bytes)) {
                return MALFORMED;
            }
            message->ordering_key_at = start - base;
            break;
        case 64:
            VALUE
            message->sequence_id = (int64_t)value;
            break;
        case 72:
            VALUE
            message->flags = with_flag(message->flags, NULL_VALUE, value);
            break;
        case 80:
            VALUE
            message->flags = with_flag(message->flags, NULL_KEY, value);
            break;
        default:
            if (!skip_field(&cursor, tag)) {
                return MALFORMED;
            }
        }
    }
    return has_size ? FOUND : MISSING;
}

/* The message at `state`, which moves behind it when it was added; to the end of the batch behind an error. */
static int scan_next_of_batch(Scan *scan, State *state) {
    Py_ssize_t number = (Py_ssize_t)state->entry;
    const Entry *entry = &scan->entries[number];
    int32_t error = BATCH_TOO_SHORT, error_index = (int32_t)state->batch_index;
    if (!is_inside(scan, entry->payload_source, entry->payload_at, entry->payload_bytes)) {
        error = BEYOND_SOURCE;
        error_index = -1;
        goto bad;
    }
    if (state->batch_index == 0) {
        if ((int64_t)entry->message_count * LEAST_MESSAGE_BYTES > entry->payload_bytes) {
            error = TOO_MANY_MESSAGES;
            error_index = -1;
            goto bad;
        }
    }
    int64_t at = state->batch_index ? state->pos : entry->payload_at; /* `state` stays as it is when the message does not fit */
    int64_t end_at = entry->payload_at + entry->payload_bytes;
    if (at < entry->payload_at || at > end_at - 4) {
        goto bad;
    }
    const uint8_t *base = scan->sources[entry->payload_source].buf;
    const uint8_t *pos = base + at, *end = base + end_at;
    uint32_t metadata_bytes = read_size(pos);
    pos += 4;
    if (metadata_bytes > (uint64_t)(end - pos)) {
        goto bad;
    }
    Cursor cursor = {pos, pos + metadata_bytes};
    Message message;
    memset(&message, 0, sizeof message);
    int has_properties = 0, is_left_out = 0;
    message.event_time_ms = entry->event_time_ms;
    message.sequence_id = entry->sequence_id;
    message.key_at = message.ordering_key_at = pos - base;
    message.key_bytes = message.ordering_key_bytes = -1;
    message.flags = entry->flags & (EVENT_TIME | NULL_VALUE);
    switch (scan_single_metadata(base, cursor, &message, &has_properties, &is_left_out)) {
    case MALFORMED:
        error = MALFORMED_BATCH_METADATA;
        goto bad;
    case MISSING:
        error = MISSING_BATCH_FIELD;
        goto bad;
    }
    int32_t value_bytes = message.value_bytes;
    if (value_bytes < 0 || value_bytes > end - cursor.end) {
        goto bad;
    }
    if (!is_left_out) {
        int64_t size_bytes = 0;
        if (has_properties && (scan->wanted & WANTS_PROPERTIES)) {
            switch (scan_properties(scan, base, cursor, 10, &message, &size_bytes)) {
            case MALFORMED:
                error = MALFORMED_BATCH_METADATA;
                goto bad;
            case MISSING:
                error = MISSING_BATCH_FIELD;
                goto bad;
            }
        }
        message.value_at = cursor.end - base;
        if (message.flags & NULL_VALUE) {
            message.value_bytes = -1;
        }
        if (message.flags & NULL_KEY) {
            message.key_bytes = -1;
        }
        message.value_source = message.metadata_source = entry->payload_source;
        message.entry = (int32_t)number;
        message.batch_index = (int32_t)state->batch_index;
        message.first_property = (int32_t)scan->property_count;
        if (add_message(scan, &message, size_bytes + size_of(scan, entry, &message)) == FULL) {
            return FULL;
        }
    }
    state->batch_index++;
    state->pos = cursor.end - base + value_bytes;
    return ADDED;

bad:
    if (add_error(scan, number, error_index, error) == FULL) {
        return FULL;
    }
    state->batch_index = entry->message_count;
    state->pos = 0;
    return ADDED;
}

static void scan_all(Scan *scan, State *state) {
    while (state->entry < scan->entry_count) {
        Py_ssize_t number = (Py_ssize_t)state->entry;
        const Entry *entry = &scan->entries[number];
        if (entry->flags & (MARKER | SKIPPED)) {
            /* nothing for applications */
        } else if (entry->error) {
            if (add_error(scan, number, -1, entry->error) == FULL) {
                return;
            }
        } else if (!(entry->flags & BATCH) || entry->chunk_count) {
            if (scan_single(scan, number) == FULL) {
                return;
            }
        } else {
            while (state->batch_index < entry->message_count) {
                if (scan_next_of_batch(scan, state) == FULL) {
                    return;
                }
            }
        }
        state->entry++;
        state->batch_index = state->pos = 0;
    }
}

/* --- What Python sees ----------------------------------------------------------------------------------------------------- */

/* The buffer of `object`, as `count` items of `item_bytes` if that is not 0. */
static int get_buffer(PyObject *object, Py_buffer *buffer, int flags, Py_ssize_t item_bytes, const char *what) {
    if (PyObject_GetBuffer(object, buffer, flags) < 0) {
        return -1;
    }
    if (item_bytes && (buffer->len % item_bytes || (uintptr_t)buffer->buf % (item_bytes % 8 ? 4 : 8))) {
        PyErr_Format(PyExc_ValueError, "%s is no array of the records that are written there", what);
        PyBuffer_Release(buffer);
        return -1;
    }
    return 0;
}

static void release(Py_buffer *buffers, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyBuffer_Release(&buffers[i]);
    }
}

/* Buffers of all items of a sequence, to be released and freed. */
static Py_buffer *get_sources(PyObject *sequence, Py_ssize_t *count) {
    Py_ssize_t size = PySequence_Size(sequence);
    if (size < 0) {
        return NULL;
    }
    Py_buffer *buffers = PyMem_Malloc((size_t)(size ? size : 1) * sizeof *buffers);
    if (!buffers) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        int failed = !item || PyObject_GetBuffer(item, &buffers[i], PyBUF_SIMPLE) < 0;
        Py_XDECREF(item);
        if (failed) {
            release(buffers, i);
            PyMem_Free(buffers);
            return NULL;
        }
    }
    *count = size;
    return buffers;
}

static PyObject *scan_entries(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects[4];
    Py_buffer buffers[4];
    if (!PyArg_ParseTuple(args, "OOOO:scan_entries", &objects[0], &objects[1], &objects[2], &objects[3])) {
        return NULL;
    }
    static const Py_ssize_t item_bytes[4] = {0, 8, 8, sizeof(Entry)};
    static const char *names[4] = {"data", "starts", "lengths", "entries"};
    for (int i = 0; i < 4; i++) {
        if (get_buffer(objects[i], &buffers[i], i == 3 ? PyBUF_WRITABLE : PyBUF_SIMPLE, item_bytes[i], names[i]) < 0) {
            release(buffers, i);
            return NULL;
        }
    }
    Py_ssize_t count = buffers[1].len / 8;
    if (buffers[2].len / 8 != count || buffers[3].len / (Py_ssize_t)sizeof(Entry) != count) {
        release(buffers, 4);
        PyErr_SetString(PyExc_ValueError, "starts, lengths and entries differ in length");
        return NULL;
    }
    const int64_t *starts = buffers[1].buf, *lengths = buffers[2].buf;
    Entry *entries = buffers[3].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        scan_entry(buffers[0].buf, buffers[0].len, starts[i], lengths[i], &entries[i]);
    }
    Py_END_ALLOW_THREADS
    release(buffers, 4);
    Py_RETURN_NONE;
}

static PyObject *scan_messages(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *sequence, *objects[4];
    int wanted;
    long long max_bytes;
    if (!PyArg_ParseTuple(args, "OOiLOOO:scan_messages", &sequence, &objects[0], &wanted, &max_bytes, &objects[1], &objects[2], &objects[3])) {
        return NULL;
    }
    static const Py_ssize_t item_bytes[4] = {sizeof(Entry), sizeof(State), sizeof(Message), sizeof(Property)};
    static const char *names[4] = {"entries", "state", "messages", "properties"};
    Py_buffer buffers[4];
    for (int i = 0; i < 4; i++) {
        if (get_buffer(objects[i], &buffers[i], i ? PyBUF_WRITABLE : PyBUF_SIMPLE, item_bytes[i], names[i]) < 0) {
            release(buffers, i);
            return NULL;
        }
    }
    Scan scan;
    memset(&scan, 0, sizeof scan);
    State *state = buffers[1].buf;
    Py_buffer *sources = NULL;
    if (buffers[1].len != sizeof(State) || state->entry < 0 || state->batch_index < 0) {
        PyErr_SetString(PyExc_ValueError, "state is one record, with nothing below 0");
    } else if (buffers[0].len / (Py_ssize_t)sizeof(Entry) > MAX_SIZE || buffers[3].len / (Py_ssize_t)sizeof(Property) > MAX_SIZE) {
        PyErr_SetString(PyExc_ValueError, "too many records");
    } else {
        sources = get_sources(sequence, &scan.source_count);
    }
    if (!sources) {
        release(buffers, 4);
        return NULL;
    }
    scan.sources = sources;
    scan.entries = buffers[0].buf;
    scan.entry_count = buffers[0].len / (Py_ssize_t)sizeof(Entry);
    scan.wanted = wanted;
    scan.left_bytes = max_bytes;
    scan.messages = buffers[2].buf;
    scan.message_capacity = buffers[2].len / (Py_ssize_t)sizeof(Message);
    scan.properties = buffers[3].buf;
    scan.property_capacity = buffers[3].len / (Py_ssize_t)sizeof(Property);
    Py_BEGIN_ALLOW_THREADS
    scan_all(&scan, state);
    Py_END_ALLOW_THREADS
    release(sources, scan.source_count);
    PyMem_Free(sources);
    release(buffers, 4);
    return Py_BuildValue("(nn)", scan.message_count, scan.message_count ? scan.property_count : scan.needed_properties);
}

/* Checks all pieces and adds up their sizes; -1 when one lies outside of its source, -2 when all are too much. */
static int64_t measure(const Py_buffer *sources, Py_ssize_t source_count, const int32_t *source, const int64_t *at, const int32_t *sizes,
                       Py_ssize_t count, Py_ssize_t *null_count) {
    int64_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (sizes[i] < 0) {
            ++*null_count;
            continue;
        }
        if (source[i] < 0 || source[i] >= source_count || at[i] < 0 || at[i] > sources[source[i]].len ||
            sizes[i] > sources[source[i]].len - at[i]) {
            return -1;
        }
        total += sizes[i];
        if (total > MAX_SIZE) {
            return -2;
        }
    }
    return total;
}

static PyObject *gather_checked(Py_buffer *sources, Py_ssize_t source_count, const Py_buffer *arrays) {
    const int32_t *source = arrays[0].buf, *sizes = arrays[2].buf;
    const int64_t *at = arrays[1].buf;
    Py_ssize_t count = arrays[1].len / 8, null_count = 0;
    int64_t total;
    Py_BEGIN_ALLOW_THREADS
    total = measure(sources, source_count, source, at, sizes, count, &null_count);
    Py_END_ALLOW_THREADS
    if (total < 0) {
        PyErr_SetString(PyExc_ValueError, total == -1 ? "a location is outside its source" : "the values of the column have more bytes than an Arrow array can hold");
        return NULL;
    }
    PyObject *validity = null_count ? PyBytes_FromStringAndSize(NULL, (count + 7) / 8) : Py_NewRef(Py_None);
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * 4);
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (!validity || !offsets || !data) {
        Py_XDECREF(validity);
        Py_XDECREF(offsets);
        Py_XDECREF(data);
        return NULL;
    }
    uint8_t *bits = null_count ? (uint8_t *)PyBytes_AsString(validity) : NULL;
    int32_t *ends = (int32_t *)(void *)PyBytes_AsString(offsets);
    uint8_t *out = (uint8_t *)PyBytes_AsString(data);
    int32_t filled = 0;
    Py_BEGIN_ALLOW_THREADS
    if (bits) {
        memset(bits, 0, (size_t)((count + 7) / 8));
    }
    memcpy(ends, &filled, 4);
    for (Py_ssize_t i = 0; i < count; i++) {
        /* The arrays belong to the caller and could be written meanwhile: what was measured is not exceeded. */
        int32_t size = sizes[i];
        if (size >= 0) {
            int32_t which = source[i];
            int64_t start = at[i];
            if (which >= 0 && which < source_count && start >= 0 && start <= sources[which].len && size <= sources[which].len - start &&
                size <= total - filled) {
                memcpy(out + filled, (const uint8_t *)sources[which].buf + start, (size_t)size);
                filled += size;
            }
            if (bits) {
                bits[i / 8] |= (uint8_t)(1u << (i % 8));
            }
        }
        memcpy(ends + i + 1, &filled, 4);
    }
    Py_END_ALLOW_THREADS
    PyObject *result = Py_BuildValue("(OnOO)", validity, null_count, offsets, data);
    Py_DECREF(validity);
    Py_DECREF(offsets);
    Py_DECREF(data);
    return result;
}

static PyObject *gather(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *sequence, *objects[3], *result = NULL;
    if (!PyArg_ParseTuple(args, "OOOO:gather", &sequence, &objects[0], &objects[1], &objects[2])) {
        return NULL;
    }
    static const Py_ssize_t item_bytes[3] = {4, 8, 4};
    static const char *names[3] = {"source", "at", "sizes"};
    Py_buffer arrays[3];
    for (int i = 0; i < 3; i++) {
        if (get_buffer(objects[i], &arrays[i], PyBUF_SIMPLE, item_bytes[i], names[i]) < 0) {
            release(arrays, i);
            return NULL;
        }
    }
    Py_ssize_t count = arrays[1].len / 8, source_count = 0;
    Py_buffer *sources = NULL;
    if (arrays[0].len / 4 != count || arrays[2].len / 4 != count) {
        PyErr_SetString(PyExc_ValueError, "source, at and sizes differ in length");
    } else {
        sources = get_sources(sequence, &source_count);
    }
    if (sources) {
        result = gather_checked(sources, source_count, arrays);
        release(sources, source_count);
        PyMem_Free(sources);
    }
    release(arrays, 3);
    return result;
}

static int varint_size(uint64_t value) {
    int size = 1;
    while (value > 0x7F) {
        value >>= 7;
        size++;
    }
    return size;
}

static uint8_t *write_varint(uint8_t *out, uint64_t value) {
    while (value > 0x7F) {
        *out++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *out++ = (uint8_t)value;
    return out;
}

static int id_size(int fixed_bytes, int64_t entry_id, int32_t batch_index, int32_t batch_size) {
    int size = fixed_bytes + varint_size((uint64_t)entry_id);
    size += batch_index >= 0 ? 1 + varint_size((uint64_t)batch_index) : 0;
    return size + (batch_size >= 0 ? 1 + varint_size((uint64_t)batch_size) : 0);
}

static PyObject *message_ids(PyObject *module, PyObject *args) {
    (void)module;
    long long ledger_id, partition;
    PyObject *objects[3];
    if (!PyArg_ParseTuple(args, "LLOOO:message_ids", &ledger_id, &partition, &objects[0], &objects[1], &objects[2])) {
        return NULL;
    }
    static const Py_ssize_t item_bytes[3] = {8, 4, 4};
    static const char *names[3] = {"entry_ids", "batch_indexes", "batch_sizes"};
    Py_buffer arrays[3];
    for (int i = 0; i < 3; i++) {
        if (get_buffer(objects[i], &arrays[i], PyBUF_SIMPLE, item_bytes[i], names[i]) < 0) {
            release(arrays, i);
            return NULL;
        }
    }
    Py_ssize_t count = arrays[0].len / 8;
    const int64_t *entry_ids = arrays[0].buf;
    const int32_t *batch_indexes = arrays[1].buf, *batch_sizes = arrays[2].buf;
    PyObject *offsets = NULL, *data = NULL, *result = NULL;
    if (arrays[1].len / 4 != count || arrays[2].len / 4 != count || count > MAX_SIZE / 64) {
        PyErr_SetString(PyExc_ValueError, "the arrays differ in length, or are too long");
        goto done;
    }
    int fixed_bytes = 2 + varint_size((uint64_t)ledger_id) + (partition >= 0 ? 1 + varint_size((uint64_t)partition) : 0);
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        total += id_size(fixed_bytes, entry_ids[i], batch_indexes[i], batch_sizes[i]);
    }
    offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * 4);
    data = PyBytes_FromStringAndSize(NULL, total);
    if (!offsets || !data) {
        goto done;
    }
    char *ends = PyBytes_AsString(offsets);
    uint8_t *first = (uint8_t *)PyBytes_AsString(data), *out = first;
    int32_t filled = 0;
    memcpy(ends, &filled, 4);
    for (Py_ssize_t i = 0; i < count; i++) { /* with the interpreter's lock: nobody changes the arrays */
        *out++ = 0x08;
        out = write_varint(out, (uint64_t)ledger_id);
        *out++ = 0x10;
        out = write_varint(out, (uint64_t)entry_ids[i]);
        if (partition >= 0) {
            *out++ = 0x18;
            out = write_varint(out, (uint64_t)partition);
        }
        if (batch_indexes[i] >= 0) {
            *out++ = 0x20;
            out = write_varint(out, (uint64_t)batch_indexes[i]);
        }
        if (batch_sizes[i] >= 0) {
            *out++ = 0x30;
            out = write_varint(out, (uint64_t)batch_sizes[i]);
        }
        filled = (int32_t)(out - first);
        memcpy(ends + (i + 1) * 4, &filled, 4);
    }
    result = Py_BuildValue("(OO)", offsets, data);
done:
    Py_XDECREF(offsets);
    Py_XDECREF(data);
    release(arrays, 3);
    return result;
}

static PyMethodDef methods[] = {
    {"scan_entries", scan_entries, METH_VARARGS, "Write a record for each entry."},
    {"scan_messages", scan_messages, METH_VARARGS, "Write records of the messages of scanned entries."},
    {"gather", gather, METH_VARARGS, "Pieces of memory as an Arrow array of bytes."},
    {"message_ids", message_ids, METH_VARARGS, "A MessageIdData for each message."},
    {NULL, NULL, 0, NULL},
};

static int add_layout(PyObject *module) {
    PyObject *layout = Py_BuildValue("(innnn)", LAYOUT_VERSION, (Py_ssize_t)sizeof(Entry), (Py_ssize_t)sizeof(Message),
                                     (Py_ssize_t)sizeof(Property), (Py_ssize_t)sizeof(State));
    if (!layout || PyModule_AddObjectRef(module, "LAYOUT", layout) < 0) {
        Py_XDECREF(layout);
        return -1;
    }
    Py_DECREF(layout);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_layout},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_scanner", "Entries to records, compiled; see python_scanner.py.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__scanner(void) {
    return PyModuleDef_Init(&definition);
}
