/* What the programs of this folder share: checks, ranks as threads or processes, device memory, the stand-ins' state.
 * A program runs one scenario: PROGRAM SCENARIO [RANK NRANKS IDFILE]. It fails at the first check that does not hold. */
#ifndef NATIVE_H
#define NATIVE_H
#define _GNU_SOURCE
#include "core.h"
#include "flagos_comm.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FAIL(...) \
    do { \
        fprintf(stderr, "FAILED %s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__); \
        fprintf(stderr, "\n"); \
        _exit(1); \
    } while (0)
#define CHECK(condition) \
    do { \
        if (!(condition)) \
            FAIL("%s", #condition); \
    } while (0)
#define EQUAL(a, b) \
    do { \
        long a_ = (long)(a), b_ = (long)(b); \
        if (a_ != b_) \
            FAIL("%s is %ld, not %ld (%s)", #a, a_, b_, #b); \
    } while (0)
/* The call returns this code; what it says is shown if not. */
#define IS(code, call) \
    do { \
        int got_ = (call); \
        if (got_ != (int)(code)) \
            FAIL("%s gave %d (%s), not %s: %s", #call, got_, flagosGetErrorString(got_), #code, flagosGetLastError(NULL)); \
    } while (0)
#define OK(call) IS(flagosSuccess, call)
#define SAYS(text, part) \
    do { \
        const char *text_ = (text); \
        if (!strstr(text_, part)) \
            FAIL("the text lacks '%s': %s", part, text_); \
    } while (0)
#define QUIET(text, part) \
    do { \
        const char *text_ = (text); \
        if (strstr(text_, part)) \
            FAIL("the text has '%s': %s", part, text_); \
    } while (0)
/* What the last failed call of this thread said. */
#define ERROR() flagosGetLastError(NULL)

#define UNUSED __attribute__((unused))

static int my_rank = 0, n_ranks = 1; /* of this process */
static const char *id_file;

static UNUSED double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static UNUSED void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* ---- the stand-ins, asked without a line in their log ---- */

static UNUSED void *entry(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *found = handle ? dlsym(handle, name) : NULL;
    if (!found)
        FAIL("%s of %s: %s", name, library, dlerror());
    return found;
}

/* A function of the runtime's stand-in. The program has a runtime of its own from the first use on. */
#define RUNTIME(name) ((__typeof__(&name))entry("libcudart.so.13", #name))

/* The library with the machine's state. Not every vendor's is NVIDIA's driver. */
static const char *machine_file(void)
{
    const char *name = getenv("MACHINE");
    return name ? name : "libcuda.so.1";
}

static UNUSED const struct fk_core *machine(void)
{
    return ((__typeof__(&fake_driver_table))entry(machine_file(), "fake_driver_table"))();
}

/* The thread's current device, -1 if it has none. */
static UNUSED int current(void) { return machine()->peek_device(); }

/* Moves the thread's current device without anybody being told. */
static UNUSED void behind(int device)
{
    ((void (*)(int))entry(machine_file(), "fake_set_current_device"))(device);
}

static UNUSED long count_of(const char *name)
{
    return ((long (*)(const char *))entry(machine_file(), "fake_call_count"))(name);
}

/* A line in the call log, for the test to find its place. */
static UNUSED void mark(const char *what)
{
    const char *log = getenv("FAKE_LOG");
    if (!log)
        return;
    char line[128];
    int n = snprintf(line, sizeof line, "%d %ld device=%d mark(%s) -> 0\n", (int)getpid(), (long)syscall(SYS_gettid), current(), what);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    CHECK(fd >= 0 && write(fd, line, (size_t)n) == n);
    close(fd);
}

/* ---- unique ids ---- */

/* The id of all processes of this run; the `turn` tells several apart. */
static UNUSED flagosUniqueId shared_id(int turn)
{
    flagosUniqueId id;
    char path[4096], tmp[4200];
    snprintf(path, sizeof path, "%s.%d", id_file ? id_file : "", turn);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (n_ranks == 1) {
        OK(flagosGetUniqueId(&id));
    } else if (my_rank == 0) {
        OK(flagosGetUniqueId(&id));
        FILE *f = fopen(tmp, "w");
        CHECK(f && fwrite(&id, sizeof id, 1, f) == 1 && !fclose(f) && !rename(tmp, path));
    } else {
        FILE *f;
        while (!(f = fopen(path, "r")))
            sleep_ms(2);
        CHECK(fread(&id, sizeof id, 1, f) == 1);
        fclose(f);
    }
    return id;
}

/* ---- ranks as threads ---- */

struct seat { int rank, n; const flagosUniqueId *id; void (*body)(int, int, const flagosUniqueId *); };

static pthread_barrier_t all_here;
/* Waits for all threads of `ranks`. */
static UNUSED void together(void) { pthread_barrier_wait(&all_here); }

static void *sit(void *arg)
{
    struct seat *s = arg;
    s->body(s->rank, s->n, s->id);
    return NULL;
}

static UNUSED void ranks_with(int n, const flagosUniqueId *id, void (*body)(int rank, int n, const flagosUniqueId *id))
{
    pthread_t threads[16];
    struct seat seats[16];
    CHECK(n <= 16);
    pthread_barrier_init(&all_here, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        seats[r] = (struct seat){r, n, id, body};
        CHECK(!pthread_create(&threads[r], NULL, sit, &seats[r]));
    }
    for (int r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&all_here);
}

/* Runs the body on a thread for each rank, with one id for all. */
static UNUSED void ranks(int n, void (*body)(int rank, int n, const flagosUniqueId *id))
{
    flagosUniqueId id;
    OK(flagosGetUniqueId(&id));
    ranks_with(n, &id, body);
}

static UNUSED void *run_void(void *body)
{
    ((void (*)(void))body)();
    return NULL;
}

static UNUSED pthread_t beside(void (*body)(void))
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, run_void, (void *)body));
    return thread;
}

/* A rank's communicator on the device with its number. */
static UNUSED flagosComm_t join(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = NULL;
    OK(flagosSetDevice(rank));
    OK(flagosCommInitRank(&comm, n, id, rank));
    return comm;
}

/* ---- device memory ---- */

static UNUSED void *device_memory(size_t bytes)
{
    void *p = NULL;
    OK(flagosMemAlloc(&p, bytes));
    return p;
}

static UNUSED void put(void *device, const void *host, size_t bytes)
{
    OK(flagosMemcpyAsync(device, host, bytes, flagosMemcpyHostToDevice, NULL));
    OK(flagosStreamSynchronize(NULL));
}

static UNUSED void get(void *host, const void *device, size_t bytes)
{
    OK(flagosMemcpyAsync(host, device, bytes, flagosMemcpyDeviceToHost, NULL));
    OK(flagosStreamSynchronize(NULL));
}

#define COUNT 1000

/* Numbers of a rank in device memory, and what they sum up to over all ranks. */
static UNUSED int value_of(int rank, int i) { return 100 * (rank + 1) + i; }
static UNUSED int sum_of(int n, int i) { return 100 * n * (n + 1) / 2 + n * i; }

static UNUSED void fill(int *device, int rank)
{
    int host[COUNT];
    for (int i = 0; i < COUNT; i++)
        host[i] = value_of(rank, i);
    put(device, host, sizeof host);
}

static UNUSED void check_sum(const int *device, int n)
{
    int host[COUNT];
    get(host, device, sizeof host);
    for (int i = 0; i < COUNT; i++)
        EQUAL(host[i], sum_of(n, i));
}

/* An all-reduce of device memory with right sums. The thread's device must be the communicator's. */
static UNUSED void all_reduce_works(flagosComm_t comm, int rank, int n)
{
    int *data = device_memory(COUNT * sizeof *data);
    fill(data, rank);
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
    OK(flagosStreamSynchronize(NULL));
    check_sum(data, n);
    OK(flagosMemFree(data));
}

static UNUSED flagosCommInfo_t info_of(flagosComm_t comm)
{
    flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;
    OK(flagosCommGetInfo(comm, &info));
    return info;
}

/* ---- the program ---- */

struct scenario { const char *name; void (*run)(void); };

static UNUSED int scenarios(int argc, char **argv, const struct scenario *list)
{
    alarm(60);
    if (argc > 4) {
        my_rank = atoi(argv[2]);
        n_ranks = atoi(argv[3]);
        id_file = argv[4];
    }
    for (; list->name; list++)
        if (argc > 1 && !strcmp(list->name, argv[1])) {
            list->run();
            return 0;
        }
    FAIL("there is no such scenario");
}
#endif
