/* The compiled core of pybroker.wire: Python functions on top of _frames.h. `core.py` describes each function and its Python twin.
 *
 * Stable ABI only. No function runs Python code while it uses a borrowed reference or a size that it computed earlier, except the
 * columns of entries, which call their fallback and then take the next entry by its index.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_frames.h"

#define JOIN_BELOW_BYTES (16 * 1024) /* larger payloads are not copied */
#define MAX_FRAME_BYTES ((Py_ssize_t)1 << 31)
#define RECEIPT_BYTES 80 /* upper bound of one SEND_RECEIPT */

/* --- Arguments ------------------------------------------------------------------------------------------------------------ */

static int check_count(Py_ssize_t count, Py_ssize_t expected) {
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected, count);
        return 0;
    }
    return 1;
}

static int bytes_of(PyObject *object, Cursor *span) {
    char *start;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(object, &start, &size) < 0) {
        return 0;
    }
    span->pos = (const uint8_t *)start;
    span->end = span->pos + size;
    return 1;
}

/* The lower 64 bits, as in `varint.encode`. Only of int, because other types would run Python code. */
static int number_of(PyObject *object, uint64_t *value) {
    if (!PyLong_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "expected an int");
        return 0;
    }
    *value = PyLong_AsUnsignedLongLongMask(object);
    return !(*value == (uint64_t)-1 && PyErr_Occurred());
}

static int signed_of(PyObject *object, int64_t *value) {
    if (!PyLong_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "expected an int");
        return 0;
    }
    *value = PyLong_AsLongLong(object);
    return !(*value == -1 && PyErr_Occurred());
}

static int is_within(int64_t pos, Py_ssize_t size_bytes) {
    if (pos < 0 || pos > size_bytes) {
        PyErr_SetString(PyExc_ValueError, "the position is outside of the data");
        return 0;
    }
    return 1;
}

/* Bytes from the position in the second argument on. */
static int data_from(PyObject *const *args, Cursor *data) {
    int64_t pos;
    if (!bytes_of(args[0], data) || !signed_of(args[1], &pos) || !is_within(pos, data->end - data->pos)) {
        return 0;
    }
    data->pos += pos;
    return 1;
}

static int is_list(PyObject *object) {
    if (!PyList_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "expected a list");
        return 0;
    }
    return 1;
}

static int append(PyObject *list, PyObject *item) {
    if (item == NULL) {
        return 0;
    }
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed == 0;
}

static PyObject *bytes_from(Cursor span) {
    return PyBytes_FromStringAndSize((const char *)span.pos, span.end - span.pos);
}

/* --- Received frames ------------------------------------------------------------------------------------------------------ */

static PyObject *sends_in(Cursor data, uint64_t max_frame_bytes, int64_t max_batch_messages) {
    Send send;
    if (!read_send(data, max_frame_bytes, max_batch_messages, NULL, &send)) {
        Py_RETURN_NONE;
    }
    const uint8_t *start = data.pos;
    uint64_t producer_id = send.producer_id;
    Py_ssize_t size_bytes = 0;
    PyObject *sequence_ids = PyList_New(0), *highest = PyList_New(0), *counts = PyList_New(0), *payloads = PyList_New(0);
    if (sequence_ids == NULL || highest == NULL || counts == NULL || payloads == NULL) {
        goto failed;
    }
    do {
        if (!append(sequence_ids, PyLong_FromUnsignedLongLong(send.sequence_id)) ||
            !append(highest, PyLong_FromUnsignedLongLong(send.highest_sequence_id)) ||
            !append(counts, PyLong_FromLongLong(send.message_count)) || !append(payloads, bytes_from(send.message))) {
            goto failed;
        }
        size_bytes += send.message.end - send.message.pos;
        data.pos = send.message.end;
    } while (read_send(data, max_frame_bytes, max_batch_messages, &producer_id, &send));
    return Py_BuildValue("nKnNNNN", (Py_ssize_t)(data.pos - start), (unsigned long long)producer_id, size_bytes, sequence_ids,
                         highest, counts, payloads);
failed:
    Py_XDECREF(sequence_ids);
    Py_XDECREF(highest);
    Py_XDECREF(counts);
    Py_XDECREF(payloads);
    return NULL;
}

/* Of any buffer. An exported buffer keeps its address and its size while the lists are allocated. */
static PyObject *scan_sends(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer buffer;
    uint64_t max_frame_bytes;
    int64_t pos, max_batch_messages;
    (void)module;
    if (!check_count(count, 4) || !signed_of(args[1], &pos) || !number_of(args[2], &max_frame_bytes) ||
        !signed_of(args[3], &max_batch_messages) || PyObject_GetBuffer(args[0], &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *scanned = NULL;
    if (is_within(pos, buffer.len)) {
        Cursor data = {(const uint8_t *)buffer.buf + pos, (const uint8_t *)buffer.buf + buffer.len};
        scanned = sends_in(data, max_frame_bytes, max_batch_messages);
    }
    PyBuffer_Release(&buffer);
    return scanned;
}

/* Entry ids of one ledger in the order sent, which start a new group when the ledger changes. */
static int add_acks(PyObject *groups, PyObject **entry_ids, uint64_t *last_ledger_id, Cursor fields) {
    uint64_t ledger_id, entry_id;
    while (next_ack_id(&fields, &ledger_id, &entry_id)) {
        if (*entry_ids == NULL || ledger_id != *last_ledger_id) {
            PyObject *list = PyList_New(0);
            if (list == NULL || !append(groups, Py_BuildValue("KN", (unsigned long long)ledger_id, list))) {
                return 0;
            }
            *entry_ids = list; /* borrowed from its group */
            *last_ledger_id = ledger_id;
        }
        if (!append(*entry_ids, PyLong_FromUnsignedLongLong(entry_id))) {
            return 0;
        }
    }
    return 1;
}

static PyObject *scan_acks(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Cursor data;
    uint64_t max_frame_bytes, last_ledger_id = 0;
    int64_t max_commands;
    Ack ack;
    (void)module;
    if (!check_count(count, 4) || !data_from(args, &data) || !number_of(args[2], &max_frame_bytes) ||
        !signed_of(args[3], &max_commands)) {
        return NULL;
    }
    if (max_commands < 1 || !read_ack(data, max_frame_bytes, &ack)) {
        Py_RETURN_NONE;
    }
    const uint8_t *start = data.pos;
    uint64_t consumer_id = ack.consumer_id;
    Py_ssize_t commands = 0;
    PyObject *groups = PyList_New(0), *entry_ids = NULL;
    if (groups == NULL) {
        return NULL;
    }
    do {
        if (!add_acks(groups, &entry_ids, &last_ledger_id, ack.ids)) {
            Py_DECREF(groups);
            return NULL;
        }
        data = ack.rest;
        commands++;
    } while (commands < max_commands && read_ack(data, max_frame_bytes, &ack) && ack.consumer_id == consumer_id);
    return Py_BuildValue("nnKN", (Py_ssize_t)(data.pos - start), commands, (unsigned long long)consumer_id, groups);
}

static PyObject *scan_flow(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Cursor data;
    uint64_t max_frame_bytes, consumer_id;
    uint32_t permits;
    Frame frame;
    (void)module;
    if (!check_count(count, 3) || !data_from(args, &data) || !number_of(args[2], &max_frame_bytes)) {
        return NULL;
    }
    if (!read_frame(data, max_frame_bytes, 11, 0x5A, &frame) || !read_flow(frame.command, &consumer_id, &permits)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("KI", (unsigned long long)consumer_id, (unsigned int)permits);
}

/* --- Sent frames ---------------------------------------------------------------------------------------------------------- */

static PyObject *send_receipts(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    uint64_t producer_id, ledger_id, entry_id, sequence_id, highest;
    (void)module;
    if (!check_count(count, 5) || !number_of(args[0], &producer_id) || !is_list(args[1]) || !is_list(args[2]) ||
        !number_of(args[3], &ledger_id) || !number_of(args[4], &entry_id)) {
        return NULL;
    }
    Py_ssize_t receipts = PyList_Size(args[1]);
    if (receipts != PyList_Size(args[2]) || receipts > PY_SSIZE_T_MAX / RECEIPT_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the lists of sequence ids differ in length");
        return NULL;
    }
    uint8_t *start = PyMem_Malloc((size_t)receipts * RECEIPT_BYTES), *out = start;
    if (start == NULL) {
        return PyErr_NoMemory();
    }
    int fixed_size = 1 + varint_size(producer_id) + 1, ledger_size = 2 + varint_size(ledger_id);
    for (Py_ssize_t index = 0; index < receipts; index++, entry_id++) {
        if (!number_of(PyList_GetItem(args[1], index), &sequence_id) || !number_of(PyList_GetItem(args[2], index), &highest)) {
            PyMem_Free(start);
            return NULL;
        }
        if (highest == 0) {
            highest = (uint64_t)-1; /* Pulsar sends -1 if the SEND had none */
        }
        int id_size = ledger_size + varint_size(entry_id);
        int size = fixed_size + varint_size(sequence_id) + 2 + id_size + 1 + varint_size(highest);
        put_big32(out, (uint32_t)size + 8);
        put_big32(out + 4, (uint32_t)size + 4);
        memcpy(out + 8, "\x08\x07\x3a", 3);
        out[11] = (uint8_t)size;
        out[12] = 0x08;
        out = put_varint(out + 13, producer_id);
        *out++ = 0x10;
        out = put_varint(out, sequence_id);
        *out++ = 0x1A;
        *out++ = (uint8_t)id_size;
        *out++ = 0x08;
        out = put_varint(out, ledger_id);
        *out++ = 0x10;
        out = put_varint(out, entry_id);
        *out++ = 0x20;
        out = put_varint(out, highest);
    }
    PyObject *frames = PyBytes_FromStringAndSize((const char *)start, out - start);
    PyMem_Free(start);
    return frames;
}

/* The arguments of `messages`. */
typedef struct {
    uint64_t consumer_id, ledger_id, partition, epoch;
    int has_partition, has_epoch;
    PyObject *entry_ids, *payloads, *redelivery_counts, *ack_sets; /* the last two: NULL for none */
} Messages;

/* One MESSAGE frame. */
typedef struct {
    uint64_t entry_id, redelivery_count; /* 0: none */
    PyObject *ack_set, *payload;         /* borrowed; ack_set NULL: none */
    Py_ssize_t payload_bytes, head_bytes, command_bytes, body_bytes;
    int id_size;
} Message;

static int read_message(const Messages *all, Py_ssize_t index, Message *message) {
    uint64_t word;
    PyObject *item = PySequence_GetItem(all->entry_ids, index); /* a list or a range */
    if (item == NULL) {
        return 0;
    }
    int is_read = number_of(item, &message->entry_id);
    Py_DECREF(item);
    if (!is_read) {
        return 0;
    }
    message->payload = PyList_GetItem(all->payloads, index);
    if (message->payload == NULL) {
        return 0;
    }
    if (!PyBytes_Check(message->payload)) {
        PyErr_SetString(PyExc_TypeError, "a payload is not bytes");
        return 0;
    }
    message->payload_bytes = PyBytes_Size(message->payload);
    int id_size = 2 + varint_size(all->ledger_id) + varint_size(message->entry_id);
    if (all->has_partition) {
        id_size += 1 + varint_size(all->partition);
    }
    Py_ssize_t body = 1 + varint_size(all->consumer_id) + 2 + id_size;
    message->ack_set = NULL;
    if (all->ack_sets != NULL) {
        item = PyList_GetItem(all->ack_sets, index);
        if (item == NULL) {
            return 0;
        }
        if (item != Py_None) {
            if (!is_list(item)) {
                return 0;
            }
            message->ack_set = item;
            Py_ssize_t words = PyList_Size(item);
            for (Py_ssize_t at = 0; at < words; at++) {
                if (!number_of(PyList_GetItem(item, at), &word)) {
                    return 0;
                }
                body += 1 + varint_size(word);
            }
        }
    }
    message->redelivery_count = 0;
    if (all->redelivery_counts != NULL) {
        item = PyList_GetItem(all->redelivery_counts, index);
        if (item == NULL || !number_of(item, &message->redelivery_count)) {
            return 0;
        }
        if (message->redelivery_count) {
            body += 1 + varint_size(message->redelivery_count);
        }
    }
    if (all->has_epoch) {
        body += 1 + varint_size(all->epoch);
    }
    message->id_size = id_size;
    message->body_bytes = body;
    message->command_bytes = 3 + varint_size((uint64_t)body) + body;
    message->head_bytes = 8 + message->command_bytes;
    if (message->head_bytes > MAX_FRAME_BYTES || message->payload_bytes > MAX_FRAME_BYTES) {
        PyErr_SetString(PyExc_OverflowError, "a frame is too large");
        return 0;
    }
    return 1;
}

static uint8_t *put_message_head(uint8_t *out, const Messages *all, const Message *message) {
    put_big32(out, (uint32_t)(message->command_bytes + 4 + message->payload_bytes));
    put_big32(out + 4, (uint32_t)message->command_bytes);
    memcpy(out + 8, "\x08\x09\x4a", 3);
    out = put_varint(out + 11, (uint64_t)message->body_bytes);
    *out++ = 0x08;
    out = put_varint(out, all->consumer_id);
    *out++ = 0x12;
    *out++ = (uint8_t)message->id_size;
    *out++ = 0x08;
    out = put_varint(out, all->ledger_id);
    *out++ = 0x10;
    out = put_varint(out, message->entry_id);
    if (all->has_partition) {
        *out++ = 0x18;
        out = put_varint(out, all->partition);
    }
    if (message->ack_set != NULL) {
        Py_ssize_t words = PyList_Size(message->ack_set);
        for (Py_ssize_t at = 0; at < words; at++) {
            *out++ = 0x20;
            out = put_varint(out, PyLong_AsUnsignedLongLongMask(PyList_GetItem(message->ack_set, at)));
        }
    }
    if (message->redelivery_count) {
        *out++ = 0x18;
        out = put_varint(out, message->redelivery_count);
    }
    if (all->has_epoch) {
        *out++ = 0x28;
        out = put_varint(out, all->epoch);
    }
    return out;
}

/* One part: the messages [first, end) with their payloads, except that of the last one if it is large. */
static PyObject *joined_messages(const Messages *all, Py_ssize_t first, Py_ssize_t end, Py_ssize_t size_bytes) {
    Message message;
    PyObject *part = PyBytes_FromStringAndSize(NULL, size_bytes);
    if (part == NULL) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AsString(part);
    for (Py_ssize_t index = first; index < end; index++) {
        if (!read_message(all, index, &message)) {
            Py_DECREF(part);
            return NULL;
        }
        out = put_message_head(out, all, &message);
        if (message.payload_bytes < JOIN_BELOW_BYTES) {
            memcpy(out, PyBytes_AsString(message.payload), (size_t)message.payload_bytes);
            out += message.payload_bytes;
        }
    }
    return part;
}

/* A negative number omits the field. */
static int optional_number(PyObject *object, int *has_value, uint64_t *value) {
    int overflow;
    if (!number_of(object, value)) {
        return 0;
    }
    long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    *has_value = overflow ? overflow > 0 : number >= 0;
    return 1;
}

static PyObject *messages(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Messages all = {0};
    Message message;
    Py_ssize_t total_bytes = 0, joined_bytes = 0, largest_bytes = 0, first = 0;
    (void)module;
    if (!check_count(count, 8) || !number_of(args[0], &all.consumer_id) || !number_of(args[1], &all.ledger_id) ||
        !is_list(args[3]) || (args[4] != Py_None && !is_list(args[4])) || (args[5] != Py_None && !is_list(args[5])) ||
        !optional_number(args[6], &all.has_epoch, &all.epoch) ||
        !optional_number(args[7], &all.has_partition, &all.partition)) {
        return NULL;
    }
    if (!PyList_Check(args[2]) && !PyRange_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "the entry ids are no list and no range");
        return NULL;
    }
    all.entry_ids = args[2];
    all.payloads = args[3];
    all.redelivery_counts = args[4] == Py_None ? NULL : args[4];
    all.ack_sets = args[5] == Py_None ? NULL : args[5];
    Py_ssize_t entries = PySequence_Size(all.entry_ids);
    PyObject *parts = PyList_New(0);
    if (parts == NULL || entries < 0) {
        goto failed;
    }
    for (Py_ssize_t index = 0; index < entries; index++) {
        if (!read_message(&all, index, &message)) {
            goto failed;
        }
        total_bytes += message.head_bytes + message.payload_bytes;
        joined_bytes += message.head_bytes;
        if (message.payload_bytes > largest_bytes) {
            largest_bytes = message.payload_bytes;
        }
        if (message.payload_bytes < JOIN_BELOW_BYTES) {
            joined_bytes += message.payload_bytes;
            continue;
        }
        if (!append(parts, joined_messages(&all, first, index + 1, joined_bytes)) ||
            PyList_Append(parts, message.payload) < 0) {
            goto failed;
        }
        first = index + 1;
        joined_bytes = 0;
    }
    if (first < entries && !append(parts, joined_messages(&all, first, entries, joined_bytes))) {
        goto failed;
    }
    return Py_BuildValue("Nnn", parts, total_bytes, largest_bytes);
failed:
    Py_XDECREF(parts);
    return NULL;
}

/* --- Columns of entries --------------------------------------------------------------------------------------------------- */

typedef PyObject *(*Fact)(Cursor metadata); /* NULL without an error: undecided */

static PyObject *key_hash_of(Cursor metadata) {
    uint32_t hash;
    return key_hash(metadata, &hash) ? PyLong_FromUnsignedLong(hash) : NULL;
}

static PyObject *deliver_at_of(Cursor metadata) {
    uint64_t time_ms;
    return deliver_at(metadata, &time_ms) ? PyLong_FromUnsignedLongLong(time_ms) : NULL;
}

static PyObject *message_count_of(Cursor metadata) {
    int64_t value;
    return message_count(metadata, &value) ? PyLong_FromLongLong(value) : NULL;
}

static PyObject *marker_of(Cursor metadata) { return has_marker(metadata) ? NULL : PyBool_FromLong(0); }

static PyObject *chunk_of(Cursor metadata) {
    if (has_chunk(metadata)) {
        return NULL;
    }
    Py_INCREF(Py_None);
    return Py_None;
}

/* A fact of each entry in the second argument; the function in the first argument decides unusual entries. */
static PyObject *column(PyObject *const *args, Py_ssize_t count, Fact fact) {
    if (!check_count(count, 2) || !is_list(args[1])) {
        return NULL;
    }
    PyObject *facts = PyList_New(0);
    for (Py_ssize_t index = 0; facts != NULL && index < PyList_Size(args[1]); index++) {
        Cursor span, metadata;
        PyObject *value = NULL, *entry = PyList_GetItem(args[1], index);
        if (PyBytes_Check(entry) && bytes_of(entry, &span) && metadata_span(span, &metadata)) {
            value = fact(metadata);
        }
        if (value == NULL && !PyErr_Occurred()) {
            Py_INCREF(entry);
            value = PyObject_CallFunctionObjArgs(args[0], entry, NULL);
            Py_DECREF(entry);
        }
        if (!append(facts, value)) {
            Py_CLEAR(facts);
        }
    }
    return facts;
}

#define COLUMN(name, fact)                                                                     \
    static PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count) {         \
        (void)module;                                                                          \
        return column(args, count, fact);                                                      \
    }

COLUMN(key_hashes, key_hash_of)
COLUMN(deliver_at_times, deliver_at_of)
COLUMN(message_counts, message_count_of)
COLUMN(markers, marker_of)
COLUMN(chunks, chunk_of)

/* --- BookKeeper ----------------------------------------------------------------------------------------------------------- */

static PyObject *pack_ledger_add(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Cursor head, payload;
    int64_t ledger_id, entry_id, last_confirmed, length_bytes;
    (void)module;
    if (!check_count(count, 6) || !bytes_of(args[0], &head) || !signed_of(args[1], &ledger_id) ||
        !signed_of(args[2], &entry_id) || !signed_of(args[3], &last_confirmed) || !signed_of(args[4], &length_bytes) ||
        !bytes_of(args[5], &payload)) {
        return NULL;
    }
    Py_ssize_t head_bytes = head.end - head.pos, payload_bytes = payload.end - payload.pos;
    if (head_bytes > MAX_FRAME_BYTES / 2 || payload_bytes > MAX_FRAME_BYTES / 2) {
        PyErr_SetString(PyExc_OverflowError, "a frame is too large");
        return NULL;
    }
    PyObject *frame = PyBytes_FromStringAndSize(NULL, 4 + head_bytes + STORED_HEADER_BYTES + payload_bytes);
    if (frame == NULL) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AsString(frame), *header = out + 4 + head_bytes;
    put_big32(out, (uint32_t)(head_bytes + STORED_HEADER_BYTES + payload_bytes));
    memcpy(out + 4, head.pos, (size_t)head_bytes);
    put_big64(header, (uint64_t)ledger_id);
    put_big64(header + 8, (uint64_t)entry_id);
    put_big64(header + 16, (uint64_t)last_confirmed);
    put_big64(header + 24, (uint64_t)length_bytes);
    put_big32(header + LEDGER_HEADER_BYTES,
              crc32c(crc32c(0, header, LEDGER_HEADER_BYTES), payload.pos, (size_t)payload_bytes));
    memcpy(header + STORED_HEADER_BYTES, payload.pos, (size_t)payload_bytes);
    return frame;
}

static PyObject *unpack_ledger_entry(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Cursor stored;
    int64_t ledger_id, entry_id;
    LedgerEntry entry;
    (void)module;
    if (!check_count(count, 3) || !bytes_of(args[0], &stored) || !signed_of(args[1], &ledger_id) ||
        !signed_of(args[2], &entry_id)) {
        return NULL;
    }
    if (!read_ledger_entry(stored, ledger_id, entry_id, &entry)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("LLN", (long long)entry.last_confirmed, (long long)entry.length_bytes, bytes_from(entry.payload));
}

static PyObject *scan_ledger_answers(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Cursor data;
    uint64_t max_frame_bytes;
    Answer answer;
    (void)module;
    if (!check_count(count, 2) || !bytes_of(args[0], &data) || !number_of(args[1], &max_frame_bytes)) {
        return NULL;
    }
    const uint8_t *start = data.pos;
    PyObject *answers = PyList_New(0);
    if (answers == NULL) {
        return NULL;
    }
    while (read_answer(data, max_frame_bytes, &answer)) {
        PyObject *body = bytes_from(answer.body);
        if (body == NULL ||
            !append(answers, Py_BuildValue("iiLLiN", answer.operation, (int)answer.code, (long long)answer.ledger_id,
                                           (long long)answer.entry_id, -1, body))) {
            Py_DECREF(answers);
            return NULL;
        }
        data.pos = answer.body.end;
    }
    return Py_BuildValue("nN", (Py_ssize_t)(data.pos - start), answers);
}

/* --- The module ----------------------------------------------------------------------------------------------------------- */

static PyObject *checksum(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Cursor data;
    uint64_t start;
    (void)module;
    if (!check_count(count, 2) || !bytes_of(args[0], &data) || !number_of(args[1], &start)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(crc32c((uint32_t)start, data.pos, (size_t)(data.end - data.pos)));
}

static PyObject *software_checksum(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Cursor data;
    uint64_t start;
    (void)module;
    if (!check_count(count, 2) || !bytes_of(args[0], &data) || !number_of(args[1], &start)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(software_crc32c((uint32_t)start, data.pos, (size_t)(data.end - data.pos)));
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(scan_sends),       FUNCTION(scan_acks),       FUNCTION(scan_flow),           FUNCTION(send_receipts),
    FUNCTION(messages),         FUNCTION(key_hashes),      FUNCTION(deliver_at_times),    FUNCTION(message_counts),
    FUNCTION(markers),          FUNCTION(chunks),          FUNCTION(pack_ledger_add),     FUNCTION(unpack_ledger_entry),
    FUNCTION(scan_ledger_answers),
    FUNCTION(checksum),         FUNCTION(software_checksum), {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__core(void) {
    const char *crc32c_name = init_crc32c();
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddIntConstant(module, "INTERFACE_VERSION", 2) < 0 ||
                           PyModule_AddStringConstant(module, "CRC32C", crc32c_name) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
