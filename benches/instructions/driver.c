/* Calls one operation many times, through libflagos_comm.so or directly, for callgrind to count.
 *
 *     driver ours|direct OPERATION CALLS LIBRARY
 *
 * "direct" takes LIBRARY for a collective library with NCCL's names, "ours" for a libflagos_comm.so, which
 * finds the same collective library by itself. Both use the same loops through pointers of the same type, so
 * that the difference of two counts is the difference of the callees. A communicator has one rank.
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
typedef int32_t (*move_fn)(const void *, void *, size_t, int32_t, void *, void *);
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

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: driver ours|direct OPERATION CALLS LIBRARY\n"), 2;
    int ours = strcmp(argv[1], "ours") == 0;
    const char *prefix = ours ? "flagos" : "nccl";
    void *library = dlopen(argv[4], RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;

    int32_t code;
    if (ours) {
        flagos_id id;
        typedef int32_t (*get_id)(flagos_id *);
        typedef int32_t (*init)(void **, int32_t, const flagos_id *, int32_t);
        code = AS(get_id, symbol(library, prefix, "GetUniqueId"))(&id);
        if (code == 0) code = AS(init, symbol(library, prefix, "CommInitRank"))(&comm, 1, &id, 0);
    } else {
        nccl_id id;
        typedef int32_t (*get_id)(nccl_id *);
        typedef int32_t (*init)(void **, int32_t, nccl_id, int32_t);
        code = AS(get_id, symbol(library, prefix, "GetUniqueId"))(&id);
        if (code == 0) code = AS(init, symbol(library, prefix, "CommInitRank"))(&comm, 1, id, 0);
    }
    typedef const char *(*last_error)(void *);
    last_error words = AS(last_error, symbol(library, prefix, "GetLastError"));
    if (code != 0) return fprintf(stderr, "init gave %d: %s\n", code, words(NULL)), 1;

    long calls = atol(argv[3]);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (strcmp(operations[i].name, argv[2]) != 0) continue;
        void *f = symbol(library, prefix, operations[i].name);
        switch (operations[i].kind) {
            case 'r': code = counted_reduce(AS(reduce_fn, f), calls); break;
            case 'o': code = counted_rooted(AS(rooted_fn, f), calls); break;
            case 'm': code = counted_move(AS(move_fn, f), calls); break;
            default: code = counted_peer(AS(peer_fn, f), calls);
        }
        if (code != 0) return fprintf(stderr, "%s gave %d: %s\n", argv[2], code, words(comm)), 1;
        return 0;
    }
    return fprintf(stderr, "no operation %s\n", argv[2]), 2;
}
