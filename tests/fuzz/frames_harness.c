/* Runs the functions of _frames.h on mutated frames: the sanitizers of the compiler find reads outside of the input.
 *
 *   frames_harness CORPUS SEED COUNT
 *
 * CORPUS holds frames as `size(4) bytes`, big-endian; `python -m tools.sanitize` writes it, compiles this file and runs it. Each input
 * is in memory of exactly its size. The results are compared with those of Python in tests/fuzz/test_wire_core.py, not here.
 */

#include <stdio.h>
#include <stdlib.h>

#include "../../src/pybroker/wire/_frames.h"

#define MAX_CORPUS (1 << 24)
#define MAX_FRAMES 4096
#define MAX_INPUT 8192
#define MAX_FRAME 65536

static uint64_t state;

static uint32_t dice(uint32_t bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % bound;
}

static const uint8_t interesting[] = {0, 1, 2, 3, 4, 8, 10, 16, 18, 26, 32, 40, 48, 50, 82, 88, 90, 0x7F, 0x80, 0x98, 0xA0, 0xD2, 0xFF};

static size_t mutate(uint8_t *data, size_t size) {
    for (uint32_t left = dice(5); left > 0 && size > 0; left--) {
        size_t at = dice((uint32_t)size);
        switch (dice(8)) {
        case 0:
            size = at;
            break;
        case 1:
            memmove(data + at, data + at + 1, --size - at);
            break;
        case 2:
            if (size < MAX_INPUT) {
                memmove(data + at + 1, data + at, size++ - at);
            }
            break;
        case 3:
            data[at] = (uint8_t)dice(256);
            break;
        default:
            data[at] = interesting[dice(sizeof interesting)];
        }
    }
    return size;
}

/* So that mutated frames are not rejected at once: their sizes and their checksum. */
static void correct(uint8_t *data, size_t size) {
    if (size < 8) {
        return;
    }
    put_big32(data, (uint32_t)size - 4);
    size_t command = big32(data + 4);
    if (command > size - 8) {
        put_big32(data + 4, (uint32_t)size - 8);
        return;
    }
    uint8_t *message = data + 8 + command;
    size_t message_size = size - 8 - command;
    if (message_size >= CHECKSUM_BYTES && message[0] == 0x0E && message[1] == 0x01) {
        put_big32(message + 2, crc32c(0, message + CHECKSUM_BYTES, message_size - CHECKSUM_BYTES));
    }
}

static uint64_t check(Cursor data) {
    uint64_t taken = 0, first, second;
    uint32_t value;
    int64_t count;
    Send send;
    Ack ack;
    Frame frame;
    LedgerEntry entry;
    Answer answer;
    Cursor metadata, rest = data;
    while (read_send(rest, MAX_FRAME, 1000, NULL, &send)) {
        rest.pos = send.message.end;
        taken++;
    }
    rest = data;
    while (read_ack(rest, MAX_FRAME, &ack)) {
        for (Cursor ids = ack.ids; next_ack_id(&ids, &first, &second);) {
            taken++;
        }
        rest = ack.rest;
    }
    if (read_frame(data, MAX_FRAME, 11, 0x5A, &frame)) {
        taken += (uint64_t)read_flow(frame.command, &first, &value);
    }
    taken += (uint64_t)read_ledger_entry(data, 7, 7, &entry);
    for (rest = data; read_answer(rest, MAX_FRAME, &answer); taken++) {
        rest.pos = answer.body.end;
    }
    /* The message of a SEND, and the whole input as an entry. */
    Cursor spans[2] = {data, data};
    if (data.end - data.pos >= 8 && big32(data.pos + 4) <= (uint64_t)(data.end - data.pos) - 8) {
        spans[0].pos = data.pos + 8 + big32(data.pos + 4);
    }
    for (int index = 0; index < 2; index++) {
        if (metadata_span(spans[index], &metadata)) {
            taken += (uint64_t)(message_count(metadata, &count) + deliver_at(metadata, &first) + key_hash(metadata, &value) +
                                has_marker(metadata) + has_chunk(metadata));
        }
    }
    return taken;
}

int main(int count, char **arguments) {
    static uint8_t corpus[MAX_CORPUS], made[MAX_INPUT + 1];
    static const uint8_t *frames[MAX_FRAMES];
    static uint32_t sizes[MAX_FRAMES];
    uint32_t known = 0;
    if (count != 4) {
        return 2;
    }
    FILE *file = fopen(arguments[1], "rb");
    if (file == NULL) {
        return 2;
    }
    size_t size = fread(corpus, 1, sizeof corpus, file);
    fclose(file);
    for (size_t at = 0; at + 4 <= size && known < MAX_FRAMES; at += 4 + sizes[known - 1]) {
        sizes[known] = big32(corpus + at);
        frames[known++] = corpus + at + 4;
    }
    state = strtoull(arguments[2], NULL, 10) * 0x9E3779B97F4A7C15u + 1;
    init_crc32c();
    uint64_t taken = 0, inputs = strtoull(arguments[3], NULL, 10);
    for (uint64_t number = 0; number < inputs; number++) {
        size_t bytes = 0;
        for (uint32_t left = 1 + dice(3); left > 0; left--) {
            uint32_t chosen = dice(known);
            if (bytes + sizes[chosen] + 8 > MAX_INPUT) {
                break;
            }
            memcpy(made + bytes, frames[chosen], sizes[chosen]);
            size_t changed = mutate(made + bytes, sizes[chosen]);
            if (dice(8)) {
                correct(made + bytes, changed);
            }
            bytes += changed;
        }
        uint8_t *input = malloc(bytes ? bytes : 1);
        if (input == NULL) {
            return 2;
        }
        memcpy(input, made, bytes);
        if (bytes) {
            taken += check((Cursor){input, input + bytes});
        }
        free(input);
    }
    printf("%llu inputs, %llu facts\n", (unsigned long long)inputs, (unsigned long long)taken);
    return 0;
}
