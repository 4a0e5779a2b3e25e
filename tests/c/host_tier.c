/*
 * The embedded host tier from C, on 1 and 2 ranks in threads of one process: every operation, and
 * misuse that needs a live communicator.
 *
 * AV-1, AV-2, AV-3, AV-5, GR-2, GR-4, NU-8.
 *
 * usage: host_tier [quick]
 */
#include "flagos_comm.h"

#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { max_ranks = 2, guard = 64 };

static int failures;
static int quick;

#define FAIL(...)                                                                          \
    do {                                                                                   \
        fprintf(stderr, "line %d: ", __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                      \
        fprintf(stderr, "\n");                                                             \
        __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);                                \
    } while (0)

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            FAIL("%s", #condition);                                                        \
        }                                                                                  \
    } while (0)

/* The call must return this code; if it is an error, with a text. */
#define GIVES(expected, comm, call)                                                        \
    do {                                                                                   \
        flagosResult_t result_ = (call);                                                   \
        if (result_ != (flagosResult_t)(expected)) {                                       \
            FAIL("%s returned %d, not %d: %s", #call, result_, (int)(expected),            \
                 flagosGetLastError(comm));                                                \
        } else if (result_ != flagosSuccess && flagosGetLastError(comm)[0] == 0) {         \
            FAIL("%s failed without a text", #call);                                       \
        }                                                                                  \
    } while (0)

#define OK(comm, call) GIVES(flagosSuccess, comm, call)

struct rank {
    flagosComm_t comm;
    int rank;
    int ranks;
    void (*body)(struct rank *);
};

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    rank->body(rank);
    return NULL;
}

/* Makes a communicator, runs a function on each rank in a thread of its own, frees it. */
static void with_ranks(int ranks, void (*body)(struct rank *))
{
    flagosComm_t comms[max_ranks] = { NULL };
    struct rank rank[max_ranks];
    pthread_t thread[max_ranks];
    flagosResult_t result = flagosCommInitAll(comms, ranks, NULL);
    int i;
    if (result != flagosSuccess) {
        FAIL("flagosCommInitAll of %d: %d, %s", ranks, result, flagosGetLastError(NULL));
        return;
    }
    for (i = 0; i < ranks; i++) {
        rank[i].comm = comms[i];
        rank[i].rank = i;
        rank[i].ranks = ranks;
        rank[i].body = body;
        pthread_create(&thread[i], NULL, run_rank, &rank[i]);
    }
    for (i = 0; i < ranks; i++) {
        pthread_join(thread[i], NULL);
    }
    for (i = 0; i < ranks; i++) {
        OK(NULL, flagosCommDestroy(comms[i]));
    }
}

/* ---- elements: small numbers, exact in every type that reduces */

static uint16_t to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) == 0) {
        return (uint16_t)(bits >> 16);
    }
    return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff));
}

static float from_half(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x8000) << 16;
    float value;
    if ((half & 0x7fff) != 0) {
        bits |= (((uint32_t)half >> 10 & 0x1f) + 112) << 23 | (uint32_t)(half & 0x3ff) << 13;
    }
    memcpy(&value, &bits, 4);
    return value;
}

static void put(char *buffer, size_t at, flagosDataType_t type, double value)
{
    char *place = buffer + at * flagosDataTypeSize(type);
    switch (type) {
    case flagosInt8: { int8_t v = (int8_t)value; memcpy(place, &v, 1); break; }
    case flagosInt32: { int32_t v = (int32_t)value; memcpy(place, &v, 4); break; }
    case flagosUint32: { uint32_t v = (uint32_t)value; memcpy(place, &v, 4); break; }
    case flagosInt64: { int64_t v = (int64_t)value; memcpy(place, &v, 8); break; }
    case flagosUint64: { uint64_t v = (uint64_t)value; memcpy(place, &v, 8); break; }
    case flagosFloat16: { uint16_t v = to_half((float)value); memcpy(place, &v, 2); break; }
    case flagosFloat32: { float v = (float)value; memcpy(place, &v, 4); break; }
    case flagosFloat64: memcpy(place, &value, 8); break;
    case flagosBfloat16: {
        float v = (float)value;
        uint32_t bits;
        uint16_t upper;
        memcpy(&bits, &v, 4);
        upper = (uint16_t)(bits >> 16);
        memcpy(place, &upper, 2);
        break;
    }
    default: { uint8_t v = (uint8_t)value; memcpy(place, &v, 1); break; }
    }
}

static double get(const char *buffer, size_t at, flagosDataType_t type)
{
    const char *place = buffer + at * flagosDataTypeSize(type);
    switch (type) {
    case flagosInt8: { int8_t v; memcpy(&v, place, 1); return v; }
    case flagosInt32: { int32_t v; memcpy(&v, place, 4); return v; }
    case flagosUint32: { uint32_t v; memcpy(&v, place, 4); return v; }
    case flagosInt64: { int64_t v; memcpy(&v, place, 8); return (double)v; }
    case flagosUint64: { uint64_t v; memcpy(&v, place, 8); return (double)v; }
    case flagosFloat16: { uint16_t v; memcpy(&v, place, 2); return from_half(v); }
    case flagosFloat32: { float v; memcpy(&v, place, 4); return v; }
    case flagosFloat64: { double v; memcpy(&v, place, 8); return v; }
    case flagosBfloat16: {
        uint16_t upper;
        uint32_t bits;
        float v;
        memcpy(&upper, place, 2);
        bits = (uint32_t)upper << 16;
        memcpy(&v, &bits, 4);
        return v;
    }
    default: { uint8_t v; memcpy(&v, place, 1); return v; }
    }
}

static int is_integer(flagosDataType_t type)
{
    return type <= flagosUint64;
}

/* What rank r contributes at element i. */
static double input(int r, size_t i)
{
    return (double)(i % 3) + r + 1;
}

static double reduced(flagosRedOp_t op, int ranks, size_t i, flagosDataType_t type)
{
    double result = input(0, i);
    int r;
    for (r = 1; r < ranks; r++) {
        double other = input(r, i);
        switch (op) {
        case flagosProd: result *= other; break;
        case flagosMax: result = other > result ? other : result; break;
        case flagosMin: result = other < result ? other : result; break;
        default: result += other; break;
        }
    }
    if (op == flagosAvg) {
        result /= ranks;
        if (is_integer(type)) {
            result = (double)(long)result;
        }
    }
    return result;
}

/* ---- buffers with a guard on both sides */

struct buffer {
    char *memory;
    char *data;
    size_t bytes;
};

static struct buffer make(size_t count, flagosDataType_t type)
{
    struct buffer buffer;
    buffer.bytes = count * flagosDataTypeSize(type);
    buffer.memory = malloc(buffer.bytes + 2 * guard);
    memset(buffer.memory, 0x5a, buffer.bytes + 2 * guard);
    buffer.data = buffer.memory + guard;
    return buffer;
}

static void fill(struct buffer *buffer, int r, size_t first, size_t count, flagosDataType_t type)
{
    size_t i;
    for (i = 0; i < count; i++) {
        put(buffer->data, first + i, type, input(r, first + i));
    }
}

static void release_at(int line, struct buffer *buffer)
{
    size_t i;
    for (i = 0; i < guard; i++) {
        if (buffer->memory[i] != 0x5a || buffer->data[buffer->bytes + i] != 0x5a) {
            fprintf(stderr, "line %d: written outside a buffer\n", line);
            __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
            break;
        }
    }
    free(buffer->memory);
}

#define RELEASE(buffer) release_at(__LINE__, buffer)

#define EXPECT(buffer, at, type, value)                                                    \
    do {                                                                                   \
        double found_ = get((buffer).data, at, type);                                      \
        double wanted_ = (value);                                                          \
        if (found_ != wanted_) {                                                           \
            FAIL("rank %d of %d, type %d, element %zu of %zu: %g, not %g", rank->rank,     \
                 rank->ranks, (int)(type), (size_t)(at), count, found_, wanted_);          \
            break;                                                                         \
        }                                                                                  \
    } while (0)

/* ---- every operation */

static void reductions(struct rank *rank, size_t count, flagosDataType_t type, flagosStream_t stream)
{
    flagosRedOp_t op;
    for (op = flagosSum; op <= flagosAvg; op++) {
        size_t n = (size_t)rank->ranks;
        int root;
        size_t i;
        struct buffer send = make(count, type);
        struct buffer recv = make(count, type);
        struct buffer wide = make(count * n, type);
        fill(&send, rank->rank, 0, count, type);
        fill(&wide, rank->rank, 0, count * n, type);

        OK(rank->comm, flagosAllReduce(send.data, recv.data, count, type, op, rank->comm, stream));
        OK(NULL, flagosStreamSynchronize(stream));
        for (i = 0; i < count; i++) {
            EXPECT(recv, i, type, reduced(op, rank->ranks, i, type));
            EXPECT(send, i, type, input(rank->rank, i));
        }

        for (root = 0; root < rank->ranks; root++) {
            int here = rank->rank == root;
            memset(recv.data, 0, recv.bytes);
            OK(rank->comm, flagosReduce(send.data, here ? recv.data : NULL, count, type, op, root,
                                        rank->comm, stream));
            OK(NULL, flagosStreamSynchronize(stream));
            for (i = 0; here && i < count; i++) {
                EXPECT(recv, i, type, reduced(op, rank->ranks, i, type));
            }
        }

        memset(recv.data, 0, recv.bytes);
        OK(rank->comm, flagosReduceScatter(wide.data, recv.data, count, type, op, rank->comm, stream));
        OK(NULL, flagosStreamSynchronize(stream));
        for (i = 0; i < count; i++) {
            EXPECT(recv, i, type, reduced(op, rank->ranks, (size_t)rank->rank * count + i, type));
        }

        /* In place. */
        OK(rank->comm, flagosAllReduce(send.data, send.data, count, type, op, rank->comm, stream));
        OK(rank->comm, flagosReduceScatter(wide.data,
                                           wide.data + (size_t)rank->rank * recv.bytes, count, type, op,
                                           rank->comm, stream));
        OK(NULL, flagosStreamSynchronize(stream));
        for (i = 0; i < count; i++) {
            size_t at = (size_t)rank->rank * count + i;
            EXPECT(send, i, type, reduced(op, rank->ranks, i, type));
            EXPECT(wide, at, type, reduced(op, rank->ranks, at, type));
        }
        RELEASE(&send);
        RELEASE(&recv);
        RELEASE(&wide);
    }
}

/* A value of rank r at element i that every type keeps, fp8 as bytes. */
static void movement(struct rank *rank, size_t count, flagosDataType_t type, flagosStream_t stream)
{
    size_t n = (size_t)rank->ranks;
    size_t mine = (size_t)rank->rank;
    struct buffer send = make(count, type);
    struct buffer recv = make(count, type);
    struct buffer wide = make(count * n, type);
    struct buffer other = make(count * n, type);
    size_t i;
    size_t r;
    int root;
    fill(&send, rank->rank, 0, count, type);

    OK(rank->comm, flagosAllGather(send.data, wide.data, count, type, rank->comm, stream));
    OK(NULL, flagosStreamSynchronize(stream));
    for (r = 0; r < n; r++) {
        for (i = 0; i < count; i++) {
            EXPECT(wide, r * count + i, type, input((int)r, i));
        }
    }
    memset(wide.data, 0, wide.bytes);
    memcpy(wide.data + mine * send.bytes, send.data, send.bytes);
    OK(rank->comm, flagosAllGather(wide.data + mine * send.bytes, wide.data, count, type, rank->comm,
                                   stream));
    OK(NULL, flagosStreamSynchronize(stream));
    for (r = 0; r < n; r++) {
        for (i = 0; i < count; i++) {
            EXPECT(wide, r * count + i, type, input((int)r, i));
        }
    }

    for (root = 0; root < rank->ranks; root++) {
        int here = rank->rank == root;
        memset(recv.data, 0, recv.bytes);
        OK(rank->comm, flagosBroadcast(here ? send.data : NULL, recv.data, count, type, root,
                                       rank->comm, stream));
        OK(NULL, flagosStreamSynchronize(stream));
        for (i = 0; i < count; i++) {
            EXPECT(recv, i, type, input(root, i));
        }
        memset(other.data, 0, other.bytes);
        OK(rank->comm, flagosGather(send.data, here ? other.data : NULL, count, type, root,
                                    rank->comm, stream));
        OK(NULL, flagosStreamSynchronize(stream));
        for (r = 0; here && r < n; r++) {
            for (i = 0; i < count; i++) {
                EXPECT(other, r * count + i, type, input((int)r, i));
            }
        }
        /* Every rank has gathered the same into wide; the root scatters it. */
        memset(recv.data, 0, recv.bytes);
        OK(rank->comm, flagosScatter(here ? wide.data : NULL, recv.data, count, type, root,
                                     rank->comm, stream));
        OK(NULL, flagosStreamSynchronize(stream));
        for (i = 0; i < count; i++) {
            EXPECT(recv, i, type, input(rank->rank, i));
        }
    }

    /* Block j holds what rank j contributes, so everybody gets its own number from everybody. */
    memset(other.data, 0, other.bytes);
    OK(rank->comm, flagosAlltoAll(wide.data, other.data, count, type, rank->comm, stream));
    OK(NULL, flagosStreamSynchronize(stream));
    for (r = 0; r < n; r++) {
        for (i = 0; i < count; i++) {
            EXPECT(other, r * count + i, type, input(rank->rank, i));
        }
    }
    {
        /* The same with the blocks in reverse order in both buffers. */
        size_t counts[max_ranks];
        size_t displs[max_ranks];
        for (r = 0; r < n; r++) {
            counts[r] = count;
            displs[r] = (n - 1 - r) * count;
        }
        memset(other.data, 0, other.bytes);
        OK(rank->comm, flagosAlltoAllv(wide.data, counts, displs, other.data, counts, displs, type,
                                       rank->comm, stream));
        OK(NULL, flagosStreamSynchronize(stream));
        for (r = 0; r < n; r++) {
            for (i = 0; i < count; i++) {
                EXPECT(other, r * count + i, type, input(rank->ranks - 1 - rank->rank, i));
            }
        }
    }

    /* A ring, which with one rank is a message to itself. */
    memset(recv.data, 0, recv.bytes);
    OK(NULL, flagosGroupStart());
    OK(rank->comm, flagosSend(send.data, count, type, (rank->rank + 1) % rank->ranks, rank->comm,
                              stream));
    OK(rank->comm, flagosRecv(recv.data, count, type, (rank->rank + rank->ranks - 1) % rank->ranks,
                              rank->comm, stream));
    OK(NULL, flagosGroupEnd());
    OK(NULL, flagosStreamSynchronize(stream));
    for (i = 0; i < count; i++) {
        EXPECT(recv, i, type, input((rank->rank + rank->ranks - 1) % rank->ranks, i));
    }
    /* Lone messages, one way. */
    if (rank->ranks == 2) {
        if (rank->rank == 0) {
            OK(rank->comm, flagosSend(send.data, count, type, 1, rank->comm, stream));
        } else {
            OK(rank->comm, flagosRecv(recv.data, count, type, 0, rank->comm, stream));
        }
        OK(NULL, flagosStreamSynchronize(stream));
    }
    OK(rank->comm, flagosBarrier(rank->comm, stream));
    RELEASE(&send);
    RELEASE(&recv);
    RELEASE(&wide);
    RELEASE(&other);
}

static void every_operation(struct rank *rank)
{
    static const size_t counts[] = { 0, 1, 7, 8, 9, 1023, 100003 };
    size_t c;
    flagosDataType_t type;
    flagosStream_t stream = NULL;
    flagosStream_t made = NULL;
    OK(NULL, flagosStreamCreate(&made));
    for (c = 0; c < sizeof counts / sizeof *counts; c++) {
        if (quick && counts[c] > 9) {
            break;
        }
        for (type = 0; type < FLAGOS_NUM_DATA_TYPES; type++) {
            stream = type % 2 == 0 ? NULL : made;
            movement(rank, counts[c], type, stream);
            if (type < flagosFloat8e4m3) {
                reductions(rank, counts[c], type, stream);
            }
        }
    }
    OK(NULL, flagosStreamDestroy(made));
}

/* ---- queries */

static void queries(struct rank *rank)
{
    flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;
    int number = -1;
    char name[FLAGOS_MAX_TEXT_BYTES];
    size_t needed = 0;
    flagosResult_t state = 99;
    OK(rank->comm, flagosCommCount(rank->comm, &number));
    CHECK(number == rank->ranks);
    OK(rank->comm, flagosCommUserRank(rank->comm, &number));
    CHECK(number == rank->rank);
    OK(rank->comm, flagosCommGetDeviceNumber(rank->comm, &number));
    OK(rank->comm, flagosCommGetAsyncError(rank->comm, &state));
    CHECK(state == flagosSuccess);
    OK(rank->comm, flagosCommGetName(rank->comm, name, sizeof name, &needed));
    CHECK(strlen(name) + 1 == needed);
    OK(rank->comm, flagosCommGetInfo(rank->comm, &info));
    CHECK(info.size == sizeof info);
    CHECK(info.tier == flagosTierHost);
    CHECK(info.libraryPath[0] == 0 && info.libraryVersion == 0);
    CHECK(!strcmp(info.hostEngine, "shm") && !strcmp(info.hostEngineText, "shared memory"));
    CHECK(info.streamKind == flagosStreamKindVendor || info.streamKind == flagosStreamKindHost);
    CHECK(info.completion >= flagosCompletionStream && info.completion <= flagosCompletionDeviceStream);

    /* Every out-parameter can be refused on its own. */
    GIVES(flagosInvalidArgument, rank->comm, flagosCommCount(rank->comm, NULL));
    GIVES(flagosInvalidArgument, rank->comm, flagosCommUserRank(rank->comm, NULL));
    GIVES(flagosInvalidArgument, rank->comm, flagosCommGetDeviceNumber(rank->comm, NULL));
    GIVES(flagosInvalidArgument, rank->comm, flagosCommGetAsyncError(rank->comm, NULL));
    GIVES(flagosInvalidArgument, rank->comm, flagosCommGetName(rank->comm, NULL, 0, NULL));
    GIVES(flagosInvalidArgument, rank->comm, flagosCommGetInfo(rank->comm, NULL));
    CHECK(strstr(flagosGetLastError(rank->comm), "info is NULL") != NULL);
}

/* A program of the first header, whose struct ended before hostEngine, gets what that header knows. */
static void queries_of_the_first_header(struct rank *rank)
{
    flagosCommInfo_t info;
    const size_t first = offsetof(flagosCommInfo_t, hostEngine);
    const unsigned char *bytes = (const unsigned char *)&info;
    memset(&info, 0x5a, sizeof info);
    info.size = first;
    OK(rank->comm, flagosCommGetInfo(rank->comm, &info));
    CHECK(info.size == first && info.tier == flagosTierHost);
    CHECK(info.libraryPath[0] == 0 && info.libraryPath[sizeof info.libraryPath - 1] == 0);
    for (size_t at = first; at < sizeof info; at++) {
        CHECK(bytes[at] == 0x5a);
    }
    info.size = first - 1;
    GIVES(flagosInvalidArgument, rank->comm, flagosCommGetInfo(rank->comm, &info));
}

/* ---- AV-1, AV-2, AV-3: bad arguments, refused at once; the communicator works on */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void still_works(struct rank *rank)
{
    float value = 1.0f;
    OK(rank->comm, flagosAllReduce(&value, &value, 1, flagosFloat32, flagosSum, rank->comm, NULL));
    CHECK(value == (float)rank->ranks);
}

static void bad_arguments(struct rank *rank)
{
    static const int32_t numbers[] = { -1, 5, 10, 99, INT_MAX };
    static const size_t zeros[max_ranks] = { 0 };
    double start = seconds();
    flagosComm_t comm = rank->comm;
    char bytes[64] = { 0 };
    float *odd = (float *)(void *)(bytes + 1);
    int peers[3];
    size_t i;

    for (i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int32_t number = numbers[i];
        if (number == -1 || number >= FLAGOS_NUM_DATA_TYPES) {
            GIVES(flagosInvalidArgument, comm, flagosAllReduce(bytes, bytes, 1, number, flagosSum, comm, NULL));
            GIVES(flagosInvalidArgument, comm, flagosAllGather(bytes, bytes, 1, number, comm, NULL));
            GIVES(flagosInvalidArgument, comm, flagosSend(bytes, 1, number, 0, comm, NULL));
            GIVES(flagosInvalidArgument, comm, flagosAlltoAllv(bytes, zeros, zeros, bytes, zeros, zeros, number, comm, NULL));
        }
        GIVES(flagosInvalidArgument, comm, flagosAllReduce(bytes, bytes, 1, flagosInt8, number, comm, NULL));
        GIVES(flagosInvalidArgument, comm, flagosReduce(bytes, bytes, 1, flagosInt8, number, 0, comm, NULL));
        GIVES(flagosInvalidArgument, comm, flagosReduceScatter(bytes, bytes, 1, flagosInt8, number, comm, NULL));
        GIVES(flagosInvalidArgument, comm, flagosRedOpDestroy(number, comm));
    }
    /* fp8 moves but does not reduce. */
    GIVES(flagosNotSupported, comm, flagosAllReduce(bytes, bytes, 1, flagosFloat8e4m3, flagosSum, comm, NULL));

    peers[0] = -1;
    peers[1] = rank->ranks;
    peers[2] = INT_MAX;
    for (i = 0; i < 3; i++) {
        int peer = peers[i];
        GIVES(flagosInvalidArgument, comm, flagosSend(bytes, 1, flagosInt8, peer, comm, NULL));
        GIVES(flagosInvalidArgument, comm, flagosRecv(bytes, 1, flagosInt8, peer, comm, NULL));
        GIVES(flagosInvalidArgument, comm, flagosBroadcast(bytes, bytes, 1, flagosInt8, peer, comm, NULL));
        GIVES(flagosInvalidArgument, comm, flagosReduce(bytes, bytes, 1, flagosInt8, flagosSum, peer, comm, NULL));
        GIVES(flagosInvalidArgument, comm, flagosGather(bytes, bytes, 1, flagosInt8, peer, comm, NULL));
        GIVES(flagosInvalidArgument, comm, flagosScatter(bytes, bytes, 1, flagosInt8, peer, comm, NULL));
    }

    /* NULL where the role of the rank needs a buffer, and sizes that overflow. */
    GIVES(flagosInvalidArgument, comm, flagosAllReduce(NULL, bytes, 1, flagosInt8, flagosSum, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAllReduce(bytes, NULL, 1, flagosInt8, flagosSum, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAllGather(NULL, bytes, 1, flagosInt8, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosReduceScatter(bytes, NULL, 1, flagosInt8, flagosSum, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosBroadcast(bytes, NULL, 1, flagosInt8, 0, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosReduce(NULL, bytes, 1, flagosInt8, flagosSum, 0, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosGather(NULL, bytes, 1, flagosInt8, 0, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosScatter(bytes, NULL, 1, flagosInt8, 0, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAlltoAll(NULL, bytes, 1, flagosInt8, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAlltoAllv(bytes, NULL, zeros, bytes, zeros, zeros, flagosInt8, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAlltoAllv(bytes, zeros, NULL, bytes, zeros, zeros, flagosInt8, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAlltoAllv(bytes, zeros, zeros, bytes, NULL, zeros, flagosInt8, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAlltoAllv(bytes, zeros, zeros, bytes, zeros, NULL, flagosInt8, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosSend(NULL, 1, flagosInt8, 0, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosRecv(NULL, 1, flagosInt8, 0, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAllReduce(bytes, bytes, (size_t)-1 / 2, flagosFloat64, flagosSum, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAllGather(bytes, bytes, (size_t)1 << 62, flagosFloat64, comm, NULL));

    /* NULL with count 0, for every operation. */
    OK(comm, flagosAllReduce(NULL, NULL, 0, flagosFloat32, flagosSum, comm, NULL));
    OK(comm, flagosBroadcast(NULL, NULL, 0, flagosFloat32, 0, comm, NULL));
    OK(comm, flagosReduce(NULL, NULL, 0, flagosFloat32, flagosSum, 0, comm, NULL));
    OK(comm, flagosAllGather(NULL, NULL, 0, flagosFloat32, comm, NULL));
    OK(comm, flagosReduceScatter(NULL, NULL, 0, flagosFloat32, flagosSum, comm, NULL));
    OK(comm, flagosGather(NULL, NULL, 0, flagosFloat32, 0, comm, NULL));
    OK(comm, flagosScatter(NULL, NULL, 0, flagosFloat32, 0, comm, NULL));
    OK(comm, flagosAlltoAll(NULL, NULL, 0, flagosFloat32, comm, NULL));
    OK(comm, flagosAlltoAllv(NULL, zeros, zeros, NULL, zeros, zeros, flagosFloat32, comm, NULL));

    /* An odd address. */
    for (i = 0; i < 4; i++) {
        float one = 1.0f;
        memcpy(bytes + 1 + 4 * i, &one, 4);
    }
    OK(comm, flagosAllReduce(odd, odd, 4, flagosFloat32, flagosSum, comm, NULL));
    for (i = 0; i < 4; i++) {
        float sum;
        memcpy(&sum, bytes + 1 + 4 * i, 4);
        CHECK(sum == (float)rank->ranks);
    }

    still_works(rank);
    if (!quick) {
        CHECK(seconds() - start < 5.0);
    }
}

/* ---- GR-2 */

static void groups(struct rank *rank)
{
    float value = 1.0f;
    float sum = 0.0f;
    flagosComm_t comm = rank->comm;
    GIVES(flagosInvalidUsage, NULL, flagosGroupEnd());

    /* Nothing starts before the outermost end. */
    OK(NULL, flagosGroupStart());
    OK(NULL, flagosGroupStart());
    OK(comm, flagosAllReduce(&value, &sum, 1, flagosFloat32, flagosSum, comm, NULL));
    OK(NULL, flagosGroupEnd());
    CHECK(sum == 0.0f);
    OK(NULL, flagosGroupEnd());
    CHECK(sum == (float)rank->ranks);

    /* A refused call: nothing starts, the end says why, and the thread is clean. */
    sum = 0.0f;
    OK(NULL, flagosGroupStart());
    OK(comm, flagosAllReduce(&value, &sum, 1, flagosFloat32, flagosSum, comm, NULL));
    GIVES(flagosInvalidArgument, comm, flagosAllReduce(&value, &sum, 1, 99, flagosSum, comm, NULL));
    GIVES(flagosInvalidArgument, NULL, flagosGroupEnd());
    CHECK(sum == 0.0f);
    GIVES(flagosInvalidUsage, NULL, flagosGroupEnd());
    still_works(rank);

    OK(NULL, flagosGroupStart());
    GIVES(flagosInvalidUsage, comm, flagosBarrier(comm, NULL));
    GIVES(flagosInvalidUsage, NULL, flagosGroupEnd());
    still_works(rank);
}

/* ---- messages that follow others of their group */

enum { grouped = 40 };

static float grouped_value(int from, int at)
{
    return (float)(100 * from + at);
}

/* A group of messages, with one that is wrong somewhere in between: nothing is sent. */
static void wrong_message(struct rank *rank, int at, const void *buffer, size_t count, int type, int peer,
                          flagosComm_t of)
{
    float sent[grouped], received[grouped];
    flagosComm_t comm = rank->comm;
    int next = (rank->rank + 1) % rank->ranks, i;
    memset(received, 0, sizeof received);
    OK(NULL, flagosGroupStart());
    for (i = 0; i < grouped; i++) {
        sent[i] = grouped_value(rank->rank, i);
        if (i == at) {
            GIVES(flagosInvalidArgument, of, flagosSend(buffer, count, (flagosDataType_t)type, peer, of, NULL));
        }
        OK(comm, flagosSend(&sent[i], 1, flagosFloat32, next, comm, NULL));
        OK(comm, flagosRecv(&received[i], 1, flagosFloat32, next, comm, NULL));
    }
    GIVES(flagosInvalidArgument, NULL, flagosGroupEnd());
    for (i = 0; i < grouped; i++) {
        CHECK(received[i] == 0);
    }
}

static void grouped_messages(struct rank *rank)
{
    float sent[grouped], received[grouped], sum = 0.0f, one = 1.0f;
    flagosComm_t comm = rank->comm, own = NULL, stale;
    flagosStream_t stream = NULL;
    int next = (rank->rank + 1) % rank->ranks, round, i;
    static const int places[] = { 1, 20, grouped - 1 };

    for (i = 0; i < 3; i++) {
        int at = places[i];
        wrong_message(rank, at, NULL, 1, flagosFloat32, next, comm);
        wrong_message(rank, at, &one, 1, 99, next, comm);
        wrong_message(rank, at, &one, 1, -1, next, comm);
        wrong_message(rank, at, &one, 1, flagosFloat32, rank->ranks, comm);
        wrong_message(rank, at, &one, 1, flagosFloat32, -1, comm);
        wrong_message(rank, at, &one, SIZE_MAX / 2, flagosFloat32, next, comm);
        wrong_message(rank, at, &one, 1, flagosFloat32, next, NULL);
    }
    still_works(rank);

    /* Another communicator's, a collective and a stream in between; no message of 0 elements is missed. */
    OK(comm, flagosCommSplit(comm, rank->rank, 0, &own, NULL));
    OK(NULL, flagosStreamCreate(&stream));
    for (round = 0; round < 3; round++) {
        memset(received, 0, sizeof received);
        OK(NULL, flagosGroupStart());
        for (i = 0; i < grouped; i++) {
            int other = i % 5 == 4;
            flagosStream_t on = round == 1 || (round == 2 && i % 3 == 0) ? stream : NULL;
            sent[i] = grouped_value(other ? 9 : rank->rank, i);
            if (i == 17) {
                OK(comm, flagosAllReduce(&one, &sum, 1, flagosFloat32, flagosSum, comm, NULL));
            }
            OK(comm, flagosSend(&sent[i], i == 11 ? 0 : 1, flagosFloat32, other ? 0 : next, other ? own : comm, on));
            OK(comm, flagosRecv(&received[i], i == 11 ? 0 : 1, flagosFloat32, other ? 0 : next, other ? own : comm, on));
        }
        CHECK(received[0] == 0);
        OK(NULL, flagosGroupEnd());
        OK(NULL, flagosStreamSynchronize(stream));
        for (i = 0; i < grouped; i++) {
            float expected = i == 11 ? 0 : grouped_value(i % 5 == 4 ? 9 : next, i);
            CHECK(received[i] == expected);
        }
        CHECK(sum == (float)rank->ranks);
    }
    OK(NULL, flagosStreamDestroy(stream));

    /* A handle that has become stale within the group. */
    stale = own;
    OK(NULL, flagosGroupStart());
    OK(own, flagosSend(&one, 1, flagosFloat32, 0, own, NULL));
    OK(own, flagosRecv(&sum, 1, flagosFloat32, 0, own, NULL));
    OK(NULL, flagosCommAbort(own));
    GIVES(flagosInvalidArgument, NULL, flagosSend(&one, 1, flagosFloat32, 0, stale, NULL));
    GIVES(flagosInvalidArgument, NULL, flagosGroupEnd());
    still_works(rank);
}

/* ---- NU-8 */

static void to_itself(struct rank *rank)
{
    float value = 1.0f;
    GIVES(flagosInvalidUsage, rank->comm,
          flagosSend(&value, 1, flagosFloat32, rank->rank, rank->comm, NULL));
    GIVES(flagosInvalidUsage, rank->comm,
          flagosRecv(&value, 1, flagosFloat32, rank->rank, rank->comm, NULL));
    still_works(rank);
}

/* ---- operators, memory, splits */

static void pre_mul_sum(struct rank *rank)
{
    flagosRedOp_t op = -1;
    float scalar = (float)(rank->rank + 2);
    float value = 10.0f;
    float sum = 0.0f;
    OK(rank->comm, flagosRedOpCreatePreMulSum(&op, &scalar, flagosFloat32, flagosScalarHostImmediate,
                                              rank->comm));
    CHECK(op >= FLAGOS_FIRST_CUSTOM_REDOP);
    scalar = -1.0f; /* was copied */
    OK(rank->comm, flagosAllReduce(&value, &sum, 1, flagosFloat32, op, rank->comm, NULL));
    CHECK(sum == (rank->ranks == 1 ? 20.0f : 50.0f));
    /* It is of one type. */
    GIVES(flagosInvalidArgument, rank->comm,
          flagosAllReduce(&value, &sum, 1, flagosInt32, op, rank->comm, NULL));
    OK(rank->comm, flagosRedOpDestroy(op, rank->comm));
    GIVES(flagosInvalidArgument, rank->comm, flagosRedOpDestroy(op, rank->comm));
    GIVES(flagosInvalidArgument, rank->comm,
          flagosAllReduce(&value, &sum, 1, flagosFloat32, op, rank->comm, NULL));
    op = -1;
    GIVES(flagosInvalidArgument, rank->comm,
          flagosRedOpCreatePreMulSum(&op, &scalar, 99, flagosScalarHostImmediate, rank->comm));
    CHECK(op == 0);
    GIVES(flagosInvalidArgument, rank->comm,
          flagosRedOpCreatePreMulSum(&op, &scalar, flagosFloat32, 7, rank->comm));
    GIVES(flagosInvalidArgument, rank->comm,
          flagosRedOpCreatePreMulSum(&op, NULL, flagosFloat32, flagosScalarHostImmediate, rank->comm));
    still_works(rank);
}

static void memory(struct rank *rank)
{
    void *shared = NULL;
    void *handle = NULL;
    OK(NULL, flagosMemAlloc(&shared, 4096));
    if (shared == NULL) {
        return;
    }
    memset(shared, 0, 4096);
    OK(rank->comm, flagosAllReduce(shared, shared, 1024, flagosFloat32, flagosSum, rank->comm, NULL));
    OK(rank->comm, flagosCommRegister(rank->comm, shared, 4096, &handle));
    OK(rank->comm, flagosAllReduce(shared, shared, 1024, flagosFloat32, flagosSum, rank->comm, NULL));
    OK(rank->comm, flagosCommDeregister(rank->comm, handle));
    GIVES(flagosInvalidArgument, rank->comm, flagosCommDeregister(rank->comm, (void *)(size_t)0xdeadbeef));
    OK(NULL, flagosMemFree(shared));
    GIVES(flagosInvalidArgument, NULL, flagosMemFree(shared));
}

static void splits(struct rank *rank)
{
    flagosComm_t child = (flagosComm_t)rank;
    int number = -1;
    /* In reverse order. */
    OK(rank->comm, flagosCommSplit(rank->comm, 0, -rank->rank, &child, NULL));
    OK(child, flagosCommCount(child, &number));
    CHECK(number == rank->ranks);
    OK(child, flagosCommUserRank(child, &number));
    CHECK(number == rank->ranks - 1 - rank->rank);
    OK(NULL, flagosCommDestroy(child));
    /* Only rank 0 takes part. */
    child = (flagosComm_t)rank;
    OK(rank->comm, flagosCommSplit(rank->comm, rank->rank == 0 ? 7 : FLAGOS_SPLIT_NOCOLOR, 0, &child,
                                   NULL));
    CHECK((child != NULL) == (rank->rank == 0));
    if (child != NULL) {
        OK(NULL, flagosCommDestroy(child));
    }
    still_works(rank);
}

/* ---- AV-5: handles that are no more */

static void *destroy(void *comm)
{
    return (void *)(size_t)flagosCommDestroy(comm);
}

static void stale_handles(void)
{
    flagosComm_t comm = NULL;
    flagosComm_t next = NULL;
    pthread_t thread[2];
    void *result[2];
    int number = -1;
    float value = 1.0f;

    OK(NULL, flagosCommInitAll(&comm, 1, NULL));
    OK(NULL, flagosCommDestroy(comm));
    GIVES(flagosInvalidArgument, NULL, flagosCommDestroy(comm));
    GIVES(flagosInvalidArgument, NULL, flagosCommAbort(comm));
    GIVES(flagosInvalidArgument, NULL, flagosCommFinalize(comm));
    GIVES(flagosInvalidArgument, NULL, flagosCommCount(comm, &number));
    CHECK(number == 0);
    GIVES(flagosInvalidArgument, NULL,
          flagosAllReduce(&value, &value, 1, flagosFloat32, flagosSum, comm, NULL));
    /* The slot is used again, the old handle is not good again. */
    OK(NULL, flagosCommInitAll(&next, 1, NULL));
    CHECK(next != comm);
    GIVES(flagosInvalidArgument, NULL, flagosCommCount(comm, &number));
    OK(next, flagosCommCount(next, &number));
    CHECK(number == 1);
    OK(NULL, flagosCommAbort(next));
    GIVES(flagosInvalidArgument, NULL, flagosCommAbort(next));
    GIVES(flagosInvalidArgument, NULL, flagosCommDestroy(next));

    /* Two threads destroy one communicator: one of them does. */
    OK(NULL, flagosCommInitAll(&comm, 1, NULL));
    pthread_create(&thread[0], NULL, destroy, comm);
    pthread_create(&thread[1], NULL, destroy, comm);
    pthread_join(thread[0], &result[0]);
    pthread_join(thread[1], &result[1]);
    CHECK((size_t)result[0] + (size_t)result[1] == flagosInvalidArgument);
}

/* ---- GR-4: one thread owns both ranks */

static void one_thread(void)
{
    flagosUniqueId id;
    flagosComm_t comms[2] = { (flagosComm_t)&id, (flagosComm_t)&id };
    float values[2] = { 1.0f, 2.0f };
    int i;

    OK(NULL, flagosGetUniqueId(&id));
    OK(NULL, flagosGroupStart());
    OK(NULL, flagosCommInitRank(&comms[0], 2, &id, 0));
    OK(NULL, flagosCommInitRank(&comms[1], 2, &id, 1));
    CHECK(comms[0] == NULL && comms[1] == NULL);
    OK(NULL, flagosGroupEnd());
    CHECK(comms[0] != NULL && comms[1] != NULL);

    OK(NULL, flagosGroupStart());
    for (i = 0; i < 2; i++) {
        OK(comms[i], flagosAllReduce(&values[i], &values[i], 1, flagosFloat32, flagosSum, comms[i], NULL));
    }
    OK(NULL, flagosGroupEnd());
    CHECK(values[0] == 3.0f && values[1] == 3.0f);
    OK(NULL, flagosCommDestroy(comms[0]));
    OK(NULL, flagosCommDestroy(comms[1]));

    /* A rank twice: the end fails, in words, and both handles are NULL. */
    OK(NULL, flagosGetUniqueId(&id));
    comms[0] = comms[1] = (flagosComm_t)&id;
    OK(NULL, flagosGroupStart());
    OK(NULL, flagosCommInitRank(&comms[0], 2, &id, 1));
    OK(NULL, flagosCommInitRank(&comms[1], 2, &id, 1));
    GIVES(flagosInvalidUsage, NULL, flagosGroupEnd());
    CHECK(comms[0] == NULL && comms[1] == NULL);
    GIVES(flagosInvalidUsage, NULL, flagosGroupEnd());
}

/* ---- a config that is read */

static void configured(void)
{
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    flagosUniqueId id;
    flagosComm_t comm = NULL;
    char name[16];
    OK(NULL, flagosGetUniqueId(&id));
    config.name = "gradients";
    config.tiers = "host";
    config.initTimeoutMs = 5000;
    OK(NULL, flagosCommInitRankConfig(&comm, 1, &id, 0, &config));
    OK(comm, flagosCommGetName(comm, name, sizeof name, NULL));
    CHECK(strcmp(name, "gradients") == 0);
    OK(NULL, flagosCommDestroy(comm));
}

int main(int argc, char **argv)
{
    int ranks;
    quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    stale_handles();
    configured();
    one_thread();
    for (ranks = 1; ranks <= max_ranks; ranks++) {
        with_ranks(ranks, queries);
        with_ranks(ranks, queries_of_the_first_header);
        with_ranks(ranks, bad_arguments);
        with_ranks(ranks, groups);
        with_ranks(ranks, grouped_messages);
        with_ranks(ranks, to_itself);
        with_ranks(ranks, pre_mul_sum);
        with_ranks(ranks, memory);
        with_ranks(ranks, splits);
        with_ranks(ranks, every_operation);
    }
    if (failures != 0) {
        fprintf(stderr, "%d failures\n", failures);
    }
    return failures != 0;
}
