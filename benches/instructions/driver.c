/* Calls one operation many times, through libflagos_comm.so or directly, for callgrind to count.
 *
 *     driver ours|direct PREFIX OPERATION CALLS LIBRARY
 *
 * "direct" takes LIBRARY for a collective library whose names start with PREFIX, "ours" for a libflagos_comm.so,
 * which finds the same collective library by itself. Both use the same loops through pointers of the same type,
 * so that the difference of two counts is the difference of the callees; HCCL's broadcast and all-to-all, whose
 * arguments are others, have loops of their own. A communicator has one rank.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLOAT32 = 7, SUM = 0, COUNT = 4 };

typedef struct { char bytes[128]; } nccl_id;
typedef struct { char bytes[256]; } flagos_id;

typedef int32_t (*reduce_fn)(const void *, void *, size_t, int32_t, int32_t, void *, void *);
typedef int32_t (*rooted_fn)(const void *, void *, size_t, int32_t, int32_t, int32_t, void *, void *);
typedef reduce_fn broadcast_fn;
typedef int32_t (*move_fn)(const void *, void *, size_t, int32_t, void *, void *);
typedef int32_t (*in_place_fn)(void *, size_t, int32_t, int32_t, void *, void *);
typedef int32_t (*exchange_fn)(const void *, size_t, int32_t, void *, size_t, int32_t, void *, void *);
typedef int32_t (*peer_fn)(void *, size_t, int32_t, int32_t, void *, void *);

static float send_buffer[COUNT], recv_buffer[COUNT];
static void *comm;

/* callgrind collects inside functions of this name only. They return the first result that is not success. */
#define LOOP(kind, ...)                                                                                     \
    __attribute__((noinline)) static int32_t counted_##kind(kind##_fn f, long calls) {                      \
        int32_t bad = 0;                                                                                    \
        for (long i = 0; i < calls; i++) bad |= f(__VA_ARGS__);                                             \
        return bad;                                                                                         \
    }

LOOP(reduce, send_buffer, recv_buffer, COUNT, FLOAT32, SUM, comm, NULL)
LOOP(rooted, send_buffer, recv_buffer, COUNT, FLOAT32, SUM, 0, comm, NULL)
LOOP(move, send_buffer, recv_buffer, COUNT, FLOAT32, comm, NULL)
LOOP(peer, send_buffer, COUNT, FLOAT32, 0, comm, NULL)
LOOP(in_place, send_buffer, COUNT, FLOAT32, 0, comm, NULL)
LOOP(exchange, send_buffer, COUNT, FLOAT32, recv_buffer, COUNT, FLOAT32, comm, NULL)
/* In place, since out of place the root copies on a stream first. */
LOOP(broadcast, send_buffer, send_buffer, COUNT, FLOAT32, 0, comm, NULL)

/* Broadcast, Gather and Scatter have the root where AllReduce has the operator, and both are 0. */
static const struct { const char *name; char kind; } operations[] = {
    {"AllReduce", 'r'}, {"Broadcast", 'r'}, {"Reduce", 'o'},  {"AllGather", 'm'}, {"ReduceScatter", 'r'},
    {"Gather", 'r'},    {"Scatter", 'r'},   {"AlltoAll", 'm'}, {"Send", 'p'},     {"Recv", 'p'},
};

static void *symbol(void *library, const char *prefix, const char *name) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    void *found = dlsym(library, full);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return found;
}

#define AS(type, value) (*(type *)&(void *){value})

/* The communicator of a collective library, made with its own functions. */
static int32_t make(void *library, const char *prefix) {
    static unsigned char id[4108];
    typedef int32_t (*get_id)(void *);
    typedef int32_t (*by_value)(void **, int32_t, nccl_id, int32_t);
    if (strcmp(prefix, "Hccl") == 0) {
        typedef int32_t (*init)(uint32_t, const void *, uint32_t, void **);
        int32_t code = AS(get_id, symbol(library, prefix, "GetRootInfo"))(id);
        return code ? code : AS(init, symbol(library, prefix, "CommInitRootInfo"))(1, id, 0, &comm);
    }
    if (strcmp(prefix, "cncl") == 0) {
        typedef int32_t (*init)(void **, int32_t, const int32_t *, const int32_t *, int32_t, const void *);
        int32_t zero = 0, code = AS(get_id, symbol(library, prefix, "GetCliqueId"))(id);
        return code ? code : AS(init, symbol(library, prefix, "InitComms"))(&comm, 1, &zero, &zero, 1, id);
    }
    int32_t code = AS(get_id, symbol(library, prefix, "GetUniqueId"))(id);
    nccl_id value;
    memcpy(&value, id, sizeof value);
    return code ? code : AS(by_value, symbol(library, prefix, "CommInitRank"))(&comm, 1, value, 0);
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "usage: driver ours|direct PREFIX OPERATION CALLS LIBRARY\n"), 2;
    int ours = strcmp(argv[1], "ours") == 0, hccl = strcmp(argv[2], "Hccl") == 0;
    const char *prefix = ours ? "flagos" : argv[2];
    void *library = dlopen(argv[5], RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;

    int32_t code;
    typedef const char *(*last_error)(void *);
    last_error words = ours ? AS(last_error, symbol(library, prefix, "GetLastError")) : NULL;
    if (ours) {
        flagos_id id;
        typedef int32_t (*get_id)(flagos_id *);
        typedef int32_t (*init)(void **, int32_t, const flagos_id *, int32_t);
        typedef int32_t (*set)(int32_t);
        code = AS(set, symbol(library, prefix, "SetDevice"))(0);
        if (code == 0) code = AS(get_id, symbol(library, prefix, "GetUniqueId"))(&id);
        if (code == 0) code = AS(init, symbol(library, prefix, "CommInitRank"))(&comm, 1, &id, 0);
    } else {
        code = make(library, prefix);
    }
    if (code != 0) return fprintf(stderr, "init gave %d: %s\n", code, words ? words(NULL) : ""), 1;

    long calls = atol(argv[4]);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (strcmp(operations[i].name, argv[3]) != 0) continue;
        void *f = symbol(library, prefix, operations[i].name);
        int broadcast = strcmp(argv[3], "Broadcast") == 0, exchange = strcmp(argv[3], "AlltoAll") == 0;
        if (hccl && broadcast && ours) code = counted_broadcast(AS(broadcast_fn, f), calls);
        else if (hccl && broadcast) code = counted_in_place(AS(in_place_fn, f), calls);
        else if (hccl && exchange && !ours) code = counted_exchange(AS(exchange_fn, f), calls);
        else switch (operations[i].kind) {
            case 'r': code = counted_reduce(AS(reduce_fn, f), calls); break;
            case 'o': code = counted_rooted(AS(rooted_fn, f), calls); break;
            case 'm': code = counted_move(AS(move_fn, f), calls); break;
            default: code = counted_peer(AS(peer_fn, f), calls);
        }
        if (code != 0) return fprintf(stderr, "%s gave %d: %s\n", argv[3], code, words ? words(comm) : ""), 1;
        return 0;
    }
    return fprintf(stderr, "no operation %s\n", argv[3]), 2;
}
