/* Rows to the payload of a batch: the compiled twin of python_packer.py, which says what it does.
 *
 * What must hold: nothing is read outside of the buffers that were handed in, whatever their offsets say; the sizes that the first
 * pass finds are those that the second pass writes. Stable ABI and buffer protocol only; the interpreter's lock is given back.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if PY_BIG_ENDIAN
#error "offsets are little-endian; the packer in plain Python is used instead"
#endif

enum {
    VALUE_OFFSETS, VALUE_DATA, VALUE_VALID,
    KEY_OFFSETS, KEY_DATA, KEY_VALID, KEY_IS_BASE64,
    ORDERING_OFFSETS, ORDERING_DATA, ORDERING_VALID,
    EVENT_TIMES, EVENT_VALID,
    PROPERTY_OFFSETS, PROPERTY_VALID, NAME_OFFSETS, NAME_DATA, TEXT_OFFSETS, TEXT_DATA,
    COLUMNS
};

typedef struct {
    const uint8_t *at;
    int64_t size;
} Text;

typedef struct {
    const char *data[COLUMNS]; /* NULL: no such column */
    int64_t size[COLUMNS];
} Rows;

static int varint_size(uint64_t value) {
    int size = 1;
    while (value >= 0x80) {
        value >>= 7;
        size++;
    }
    return size;
}

static uint8_t *put_varint(uint8_t *out, uint64_t value) {
    while (value >= 0x80) {
        *out++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *out++ = (uint8_t)value;
    return out;
}

static uint8_t *put_text(uint8_t *out, uint8_t tag, Text text) {
    *out++ = tag;
    out = put_varint(out, (uint64_t)text.size);
    memcpy(out, text.at, (size_t)text.size);
    return out + text.size;
}

static int64_t text_size(Text text) { return 1 + varint_size((uint64_t)text.size) + text.size; }

/* Item `index` of a column of texts; 0 when its offsets do not fit. */
static int text_at(const Rows *rows, int offsets, int data, int64_t index, Text *text) {
    const int32_t *places = (const int32_t *)rows->data[offsets];
    if (places == NULL || (index + 2) * 4 > rows->size[offsets]) return 0;
    int32_t start = places[index], end = places[index + 1];
    if (start < 0 || end < start || end > rows->size[data]) return 0;
    text->at = (const uint8_t *)rows->data[data] + start;
    text->size = end - start;
    return 1;
}

static int is_there(const Rows *rows, int column, int valid, int64_t row) {
    if (rows->data[column] == NULL) return 0;
    return rows->data[valid] == NULL || rows->data[valid][row] != 0;
}

typedef struct {
    Text value, key, ordering;
    int has_value, has_key, has_ordering, has_event, is_base64;
    uint64_t event_time, sequence_id;
    int64_t first_property, end_property, header_bytes;
} Row;

/* Everything of one row, measured; 0 when an offset does not fit. */
static int read_row(const Rows *rows, int64_t index, uint64_t sequence_id, Row *row) {
    memset(row, 0, sizeof *row);
    row->sequence_id = sequence_id;
    int64_t size = 1 + varint_size(sequence_id);
    if (rows->data[PROPERTY_OFFSETS] != NULL && is_there(rows, PROPERTY_OFFSETS, PROPERTY_VALID, index)) {
        const int32_t *places = (const int32_t *)rows->data[PROPERTY_OFFSETS];
        row->first_property = places[index];
        row->end_property = places[index + 1];
        if (row->first_property < 0 || row->end_property < row->first_property) return 0;
        for (int64_t item = row->first_property; item < row->end_property; item++) {
            Text name, text;
            if (!text_at(rows, NAME_OFFSETS, NAME_DATA, item, &name)) return 0;
            if (!text_at(rows, TEXT_OFFSETS, TEXT_DATA, item, &text)) return 0;
            int64_t inner = text_size(name) + text_size(text);
            size += 1 + varint_size((uint64_t)inner) + inner;
        }
    }
    if (is_there(rows, KEY_OFFSETS, KEY_VALID, index)) {
        if (!text_at(rows, KEY_OFFSETS, KEY_DATA, index, &row->key)) return 0;
        row->has_key = 1;
        size += text_size(row->key);
        if (rows->data[KEY_IS_BASE64] != NULL && rows->data[KEY_IS_BASE64][index]) {
            row->is_base64 = 1;
            size += 2;
        }
    }
    if (is_there(rows, VALUE_OFFSETS, VALUE_VALID, index)) {
        if (!text_at(rows, VALUE_OFFSETS, VALUE_DATA, index, &row->value)) return 0;
        row->has_value = 1;
    } else {
        size += 2;
    }
    size += 1 + varint_size((uint64_t)row->value.size);
    if (is_there(rows, EVENT_TIMES, EVENT_VALID, index)) {
        row->has_event = 1;
        row->event_time = ((const uint64_t *)rows->data[EVENT_TIMES])[index];
        size += 1 + varint_size(row->event_time);
    }
    if (is_there(rows, ORDERING_OFFSETS, ORDERING_VALID, index)) {
        if (!text_at(rows, ORDERING_OFFSETS, ORDERING_DATA, index, &row->ordering)) return 0;
        row->has_ordering = 1;
        size += text_size(row->ordering);
    }
    row->header_bytes = size;
    return 1;
}

static uint8_t *put_row(const Rows *rows, const Row *row, uint8_t *out) {
    uint32_t size = (uint32_t)row->header_bytes;
    *out++ = (uint8_t)(size >> 24);
    *out++ = (uint8_t)(size >> 16);
    *out++ = (uint8_t)(size >> 8);
    *out++ = (uint8_t)size;
    for (int64_t item = row->first_property; item < row->end_property; item++) {
        Text name = {0}, text = {0};
        text_at(rows, NAME_OFFSETS, NAME_DATA, item, &name);
        text_at(rows, TEXT_OFFSETS, TEXT_DATA, item, &text);
        *out++ = 0x0a;
        out = put_varint(out, (uint64_t)(text_size(name) + text_size(text)));
        out = put_text(out, 0x0a, name);
        out = put_text(out, 0x12, text);
    }
    if (row->has_key) out = put_text(out, 0x12, row->key);
    *out++ = 0x18;
    out = put_varint(out, (uint64_t)row->value.size);
    if (row->has_event) {
        *out++ = 0x28;
        out = put_varint(out, row->event_time);
    }
    if (row->is_base64) {
        *out++ = 0x30;
        *out++ = 1;
    }
    if (row->has_ordering) out = put_text(out, 0x3a, row->ordering);
    *out++ = 0x40;
    out = put_varint(out, row->sequence_id);
    if (!row->has_value) {
        *out++ = 0x48;
        *out++ = 1;
    }
    if (row->value.size) memcpy(out, row->value.at, (size_t)row->value.size);
    return out + row->value.size;
}

/* Sizes of columns that have one item for each row; 0 when one is too short for `end` rows. */
static int are_long_enough(const Rows *rows, int64_t end) {
    static const int with_offsets[] = {VALUE_OFFSETS, KEY_OFFSETS, ORDERING_OFFSETS, PROPERTY_OFFSETS};
    static const int of_bytes[] = {VALUE_VALID, KEY_VALID, KEY_IS_BASE64, ORDERING_VALID, EVENT_VALID, PROPERTY_VALID};
    for (size_t i = 0; i < sizeof with_offsets / sizeof *with_offsets; i++)
        if (rows->data[with_offsets[i]] != NULL && rows->size[with_offsets[i]] / 4 < end + 1) return 0;
    for (size_t i = 0; i < sizeof of_bytes / sizeof *of_bytes; i++)
        if (rows->data[of_bytes[i]] != NULL && rows->size[of_bytes[i]] < end) return 0;
    return rows->data[EVENT_TIMES] == NULL || rows->size[EVENT_TIMES] / 8 >= end;
}

static PyObject *packed(const Rows *rows, int64_t start, int64_t end, int64_t max_bytes, uint64_t first_sequence_id) {
    int64_t total = 0, row_index = start;
    int fits = rows->data[VALUE_OFFSETS] != NULL && start >= 0 && start < end && are_long_enough(rows, end);
    Row row;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "rows outside of the columns");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (; row_index < end; row_index++) {
        if (!read_row(rows, row_index, first_sequence_id + (uint64_t)(row_index - start), &row)) {
            fits = 0;
            break;
        }
        int64_t size = 4 + row.header_bytes + row.value.size;
        if (row_index > start && total + size > max_bytes) break;
        total += size;
    }
    Py_END_ALLOW_THREADS
    if (!fits || total > PY_SSIZE_T_MAX / 2) {
        PyErr_SetString(PyExc_ValueError, "offsets outside of their data");
        return NULL;
    }
    PyObject *payload = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (payload == NULL) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(payload);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t index = start; index < row_index; index++) {
        read_row(rows, index, first_sequence_id + (uint64_t)(index - start), &row);
        out = put_row(rows, &row, out);
    }
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(NL)", payload, (long long)row_index);
}

static PyObject *pack(PyObject *module, PyObject *args) {
    PyObject *columns;
    long long start, end, max_bytes, first_sequence_id;
    (void)module;
    if (!PyArg_ParseTuple(args, "OLLLL", &columns, &start, &end, &max_bytes, &first_sequence_id)) return NULL;
    if (!PyTuple_Check(columns) || PyTuple_Size(columns) != COLUMNS) {
        PyErr_SetString(PyExc_ValueError, "not the columns that are packed");
        return NULL;
    }
    Rows rows;
    Py_buffer buffers[COLUMNS];
    int held[COLUMNS] = {0};
    PyObject *result = NULL;
    memset(&rows, 0, sizeof rows);
    int is_complete = 1;
    for (int column = 0; column < COLUMNS; column++) {
        PyObject *each = PyTuple_GetItem(columns, column);
        if (each == NULL || each == Py_None) continue;
        if (PyObject_GetBuffer(each, &buffers[column], PyBUF_SIMPLE) < 0) {
            is_complete = 0;
            break;
        }
        held[column] = 1;
        /* An empty buffer may have no address, and is a column all the same. */
        rows.data[column] = buffers[column].buf != NULL ? buffers[column].buf : "";
        rows.size[column] = buffers[column].len;
    }
    if (is_complete) result = packed(&rows, start, end, max_bytes, (uint64_t)first_sequence_id);
    for (int column = 0; column < COLUMNS; column++)
        if (held[column]) PyBuffer_Release(&buffers[column]);
    return result;
}

static PyMethodDef methods[] = {
    {"pack", pack, METH_VARARGS, "See python_packer.pack."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_packer", "The compiled packer of rows.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__packer(void) { return PyModule_Create(&definition); }
