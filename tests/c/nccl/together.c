/*
 * Two drop-ins, the native library and a copy of it that is linked statically into the program: four engines in one process.
 * Each makes communicators and reduces, from threads of its own at the same time; a handle of one is an error in each other.
 *
 * usage: together LIBFLAGOS_COMM LIBFLAGCX LIBNCCL
 */
#include "flagos_comm.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { engines = 4, rounds = 20 };

struct engine {
    const char *name;
    int (*init)(void **, int, const int *); /* all ranks, one here */
    int (*get_id)(void *);
    int (*init_rank)(void **, int, const void *, int);
    int (*count)(void *, int *);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*destroy)(void *);
    const char *(*last)(void *);
    void *stream;
    void *comm;
    int failures;
};

static struct engine e[engines];
static pthread_barrier_t start;

#define CHECK(engine, condition)                                                           \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "line %d: %s: %s: %s\n", __LINE__, (engine)->name, #condition, (engine)->last(NULL)); \
            (engine)->failures++;                                                          \
        }                                                                                  \
    } while (0)

static int made(struct engine *x, void **comm)
{
    char id[256];
    if (x->init != NULL) return x->init(comm, 1, NULL);
    if (x->get_id(id) != 0) return -1;
    return x->init_rank(comm, 1, id, 0);
}

static void *use(void *argument)
{
    struct engine *x = argument;
    int round, i;
    pthread_barrier_wait(&start);
    for (round = 0; round < rounds; round++) {
        void *comm = NULL;
        double in[64], out[64];
        for (i = 0; i < 64; i++) in[i] = round + i;
        memset(out, 0, sizeof out);
        CHECK(x, made(x, &comm) == 0);
        CHECK(x, x->all_reduce(in, out, 64, flagosFloat64, flagosSum, comm, x->stream) == 0);
        if (x->stream == NULL) CHECK(x, memcmp(in, out, sizeof in) == 0);
        CHECK(x, x->destroy(comm) == 0);
    }
    return NULL;
}

static void *find(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (address == NULL) fprintf(stderr, "%s\n", dlerror());
    return address;
}

int main(int argc, char **argv)
{
    static const char *const prefixes[] = { "flagos", "flagcx", "nccl" };
    pthread_t threads[engines];
    struct { void *base; } wrapper = { NULL };
    char name[64];
    int i, j, failures = 0;
    if (argc != 4) return 2;
    e[3].name = "static";
    *(void **)&e[3].init = (void *)flagosCommInitAll;
    *(void **)&e[3].count = (void *)flagosCommCount;
    *(void **)&e[3].all_reduce = (void *)flagosAllReduce;
    *(void **)&e[3].destroy = (void *)flagosCommDestroy;
    *(void **)&e[3].last = (void *)flagosGetLastError;
    for (i = 0; i < 3; i++) {
        void *library = dlopen(argv[1 + i], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        e[i].name = prefixes[i];
#define FIND(field, suffix)                                                                \
    snprintf(name, sizeof name, "%s" suffix, prefixes[i]);                                 \
    *(void **)&e[i].field = find(library, name)
        if (i != 1) {
            FIND(init, "CommInitAll");
        }
        FIND(get_id, "GetUniqueId");
        if (i == 1) {
            FIND(init_rank, "CommInitRank");
        }
        FIND(count, "CommCount");
        FIND(all_reduce, "AllReduce");
        FIND(destroy, "CommDestroy");
        FIND(last, "GetLastError");
    }
    e[1].stream = &wrapper; /* around the NULL stream: FlagCX's functions take no NULL */
    pthread_barrier_init(&start, NULL, engines);
    for (i = 0; i < engines; i++) pthread_create(&threads[i], NULL, use, &e[i]);
    for (i = 0; i < engines; i++) pthread_join(threads[i], NULL);
    for (i = 0; i < engines; i++) CHECK(&e[i], made(&e[i], &e[i].comm) == 0);
    for (i = 0; i < engines; i++) {
        for (j = 0; j < engines; j++) {
            int n = 7;
            int result = e[i].count(e[j].comm, &n);
            CHECK(&e[i], i == j ? result == 0 && n == 1 : result == flagosInvalidArgument && n == 0);
            if (i != j) {
                double in = 1, out = 0;
                CHECK(&e[i], e[i].all_reduce(&in, &out, 1, flagosFloat64, flagosSum, e[j].comm, e[i].stream) == flagosInvalidArgument);
                CHECK(&e[i], e[i].destroy(e[j].comm) == flagosInvalidArgument);
                CHECK(&e[i], e[i].last(NULL)[0] != 0);
            }
        }
    }
    for (i = 0; i < engines; i++) {
        CHECK(&e[i], e[i].destroy(e[i].comm) == 0);
        failures += e[i].failures;
    }
    return failures != 0;
}
