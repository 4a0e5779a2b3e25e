/*
 * What the programs of the hardware suite share. No header of a vendor is needed: what is used of CUDA
 * and NCCL is declared here and looked up at run time, so the same programs run on the stand-ins.
 *
 * A program is a list of scenarios. Each runs in processes of its own, forked before anything is
 * loaded, under a deadline; its ranks are processes or threads. A scenario reports any number of
 * checks: every rank calls report() at the same place, and one line tells whether all of them found
 * what they expected since the line before.
 *
 * Environment: HW_LIB (libflagos_comm.so), HW_CUDART and HW_NCCL (files, else the loader's search),
 * HW_DEVICES (number of devices), HW_LOG (folder for what is kept), HW_QUICK (1: small and few).
 */
#ifndef HW_H
#define HW_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "flagos_comm.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- CUDA's runtime ------------------------------------------------------------------------- */

typedef void *Stream;

#define HW_CUDA(X)                                                                                 \
    X(GetDevice, (int *))                                                                          \
    X(SetDevice, (int))                                                                            \
    X(GetDeviceCount, (int *))                                                                     \
    X(DeviceSynchronize, (void))                                                                   \
    X(RuntimeGetVersion, (int *))                                                                  \
    X(DriverGetVersion, (int *))                                                                   \
    X(Malloc, (void **, size_t))                                                                   \
    X(MallocManaged, (void **, size_t, unsigned))                                                  \
    X(Free, (void *))                                                                              \
    X(HostAlloc, (void **, size_t, unsigned))                                                      \
    X(FreeHost, (void *))                                                                          \
    X(HostRegister, (void *, size_t, unsigned))                                                    \
    X(HostUnregister, (void *))                                                                    \
    X(Memcpy, (void *, const void *, size_t, int))                                                 \
    X(MemcpyAsync, (void *, const void *, size_t, int, Stream))                                    \
    X(Memset, (void *, int, size_t))                                                               \
    X(StreamCreateWithFlags, (Stream *, unsigned))                                                 \
    X(StreamDestroy, (Stream))                                                                     \
    X(StreamSynchronize, (Stream))                                                                 \
    X(StreamQuery, (Stream))                                                                       \
    X(StreamIsCapturing, (Stream, int *))                                                          \
    X(StreamBeginCapture, (Stream, int))                                                           \
    X(StreamEndCapture, (Stream, void **))                                                         \
    X(GraphInstantiate, (void **, void *, unsigned long long))                                     \
    X(GraphLaunch, (void *, Stream))                                                               \
    X(GraphDestroy, (void *))                                                                      \
    X(GraphExecDestroy, (void *))                                                                  \
    X(EventCreateWithFlags, (void **, unsigned))                                                   \
    X(EventRecord, (void *, Stream))                                                               \
    X(EventSynchronize, (void *))                                                                  \
    X(EventElapsedTime, (float *, void *, void *))                                                 \
    X(EventDestroy, (void *))

#define HW_MEMBER(name, arguments) int(*name) arguments;
static struct {
    HW_CUDA(HW_MEMBER)
} C;

enum { to_device = 1, to_host = 2, any_way = 4 };
enum { capture_none = 0, capture_active = 1 };

/* ---- NCCL, for comparison with direct calls -------------------------------------------------- */

typedef struct {
    char internal[128];
} NcclId;

#define HW_NCCL(X)                                                                                 \
    X(GetVersion, (int *))                                                                         \
    X(GetUniqueId, (NcclId *))                                                                     \
    X(CommInitRank, (void **, int, NcclId, int))                                                   \
    X(CommDestroy, (void *))                                                                       \
    X(AllReduce, (const void *, void *, size_t, int, int, void *, Stream))

static struct {
    HW_NCCL(HW_MEMBER)
} N;

/* ---- the library under test ------------------------------------------------------------------ */

#define HW_FLAGOS(X)                                                                               \
    X(GetVersion) X(GetErrorString) X(GetLastError) X(GetVendor) X(GetLoadReport)                  \
    X(GetLoadReportJson) X(SetLogCallback) X(GetUniqueId) X(CommInitRank) X(CommInitRankConfig)    \
    X(CommInitAll) X(CommSplit) X(CommShrink) X(CommFinalize) X(CommDestroy) X(CommAbort)          \
    X(CommGetAsyncError) X(CommCount) X(CommUserRank) X(CommGetDeviceNumber) X(CommGetInfo)        \
    X(AllReduce) X(Broadcast) X(Reduce) X(AllGather) X(ReduceScatter) X(Gather) X(Scatter)         \
    X(AlltoAll) X(AlltoAllv) X(Barrier) X(Send) X(Recv) X(GroupStart) X(GroupEnd) X(MemAlloc)      \
    X(MemFree) X(CommRegister) X(CommDeregister) X(CommWindowRegister) X(CommWindowDeregister)     \
    X(RedOpCreatePreMulSum) X(RedOpDestroy) X(GetDevice) X(SetDevice) X(GetDeviceCount)            \
    X(StreamSynchronize) X(DataTypeSize)

#define HW_OURS(name) __typeof__(&flagos##name) name;
static struct {
    HW_FLAGOS(HW_OURS)
} F;

/* ---- scenarios and checks -------------------------------------------------------------------- */

struct shared {
    pthread_barrier_t barrier;
    flagosUniqueId id;
    NcclId nccl_id;
    pthread_mutex_t lock;
    int failures;       /* since the last line */
    int failed;         /* lines that failed */
    int lines;
    char first[2048];   /* the first failure's text */
    double number[8];   /* for the ranks to exchange */
    int flag[8];
};
static struct shared *S;
static const char *scenario_name = "";
static int ranks_of_scenario = 1;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_ms(int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000L};
    nanosleep(&t, NULL);
}

static int number_from(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? atoi(text) : otherwise;
}

__attribute__((unused)) static int quick(void)
{
    return number_from("HW_QUICK", 0);
}

static void line(const char *word, const char *name, const char *detail)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "%s  %s%s%s\n", word, name, *detail ? "  " : "", detail), i;
    if (n >= (int)sizeof text) {
        n = (int)sizeof text - 1;
        text[n - 1] = '\n';
    }
    for (i = 0; i < n - 1; i++) {
        if (text[i] == '\n') text[i] = ' ';
    }
    if (write(1, text, (size_t)n) != n) _exit(4);
}

__attribute__((format(printf, 2, 3))) static void complain(int where, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "  [%s line %d] %s\n", scenario_name, where, text);
    pthread_mutex_lock(&S->lock);
    if (S->failures++ == 0) snprintf(S->first, sizeof S->first, "line %d: %.2000s", where, text);
    pthread_mutex_unlock(&S->lock);
}

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) complain(__LINE__, __VA_ARGS__);                                         \
    } while (0)

/* The call succeeds. */
#define FLAGOS(call)                                                                               \
    do {                                                                                           \
        flagosResult_t hw_r = F.call;                                                              \
        if (hw_r != flagosSuccess)                                                                 \
            complain(__LINE__, "%s: %d, %s", #call, (int)hw_r, last_text());                       \
    } while (0)
#define CUDA(call)                                                                                 \
    do {                                                                                           \
        int hw_r = C.call;                                                                         \
        if (hw_r != 0) complain(__LINE__, "cuda%s: %d", #call, hw_r);                              \
    } while (0)
#define NCCL(call)                                                                                 \
    do {                                                                                           \
        int hw_r = N.call;                                                                         \
        if (hw_r != 0) complain(__LINE__, "nccl%s: %d", #call, hw_r);                              \
    } while (0)

static __thread flagosComm_t text_of; /* whose text a failure shows */

static const char *last_text(void)
{
    const char *text = F.GetLastError(text_of);
    return *text ? text : F.GetLastError(NULL);
}

static void meet(void)
{
    pthread_barrier_wait(&S->barrier);
}

/* One line for what all ranks found since the last. Every rank calls it. */
__attribute__((format(printf, 3, 4))) static void report(int rank, const char *name, const char *format, ...)
{
    meet();
    if (rank == 0) {
        char full[256], detail[3072];
        va_list arguments;
        snprintf(full, sizeof full, "%s.%s", scenario_name, name);
        if (S->failures != 0) {
            snprintf(detail, sizeof detail, "%s (%d in all)", S->first, S->failures);
            S->failed++;
        } else {
            va_start(arguments, format);
            vsnprintf(detail, sizeof detail, format, arguments);
            va_end(arguments);
        }
        line(S->failures ? "FAIL" : "PASS", full, detail);
        S->lines++;
        S->failures = 0;
    }
    meet();
}

/* Not to be had here. Every rank calls it, at the same place. */
__attribute__((unused)) static void skip(int rank, const char *name, const char *why)
{
    meet();
    if (rank == 0) {
        char full[256];
        snprintf(full, sizeof full, "%s.%s", scenario_name, name);
        line("SKIP", full, why);
        S->lines++;
        S->failures = 0;
    }
    meet();
}

/* In an environment of scenarios whose two processes take each other to be on another machine. */
#define MACHINES "HW_MACHINES=1", "UCX_TLS=tcp,self"

/* Whether there is no way between machines, which is said. */
__attribute__((unused)) static int no_way(int rank)
{
    if (getenv("HW_MACHINES") == NULL || dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL) != NULL) return 0;
    skip(rank, "ucx", "between machines the host tier needs UCX, and there is no libucp.so.0");
    return 1;
}

/* A scenario that can't go on. */
__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    complain(0, "gave up: %s", text);
    fflush(NULL);
    _exit(5);
}

static void *open_first(const char *variable, const char *const *names)
{
    const char *path = getenv(variable);
    void *library = NULL;
    if (path != NULL && *path != 0) {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) give_up("%s", dlerror());
        return library;
    }
    for (; *names != NULL && library == NULL; names++) {
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == NULL) give_up("%s", dlerror());
    return library;
}

static void load_cuda(void)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so", NULL};
    void *library = open_first("HW_CUDART", names);
#define HW_LOOK(name, arguments)                                                                   \
    *(void **)&C.name = dlsym(library, "cuda" #name);                                              \
    if (C.name == NULL) give_up("%s", dlerror());
    HW_CUDA(HW_LOOK)
#undef HW_LOOK
}

static void *open_nccl(void)
{
    static const char *const names[] = {"libnccl.so.2", "libnccl.so", NULL};
    return open_first("HW_NCCL", names);
}

__attribute__((unused)) static void load_nccl(void)
{
    void *library = open_nccl();
#define HW_LOOK(name, arguments)                                                                   \
    *(void **)&N.name = dlsym(library, "nccl" #name);                                              \
    if (N.name == NULL) give_up("%s", dlerror());
    HW_NCCL(HW_LOOK)
#undef HW_LOOK
}

/* Files in the process that are named like NCCL's and are not one of ours; the last one's path. */
__attribute__((unused)) static int real_copies(char *path, size_t size)
{
    char text[8192], last[8192] = "";
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(text, sizeof text, maps) != NULL) {
        char *file = strchr(text, '/');
        void *library;
        if (file == NULL || strstr(file, "libnccl") == NULL) continue;
        file[strcspn(file, "\n")] = 0;
        if (strcmp(file, last) == 0) continue;
        snprintf(last, sizeof last, "%s", file);
        library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
        if (library != NULL && dlsym(library, "flagos_comm_instance") != NULL) continue;
        found++;
        snprintf(path, size, "%s", file);
    }
    if (maps != NULL) fclose(maps);
    return found;
}

static void load_ours(void)
{
    static const char *const names[] = {"libflagos_comm.so.0", "libflagos_comm.so", NULL};
    void *library = open_first("HW_LIB", names);
#define HW_LOOK(name)                                                                              \
    *(void **)&F.name = dlsym(library, "flagos" #name);                                            \
    if (F.name == NULL) give_up("%s", dlerror());
    HW_FLAGOS(HW_LOOK)
#undef HW_LOOK
}

enum how { alone, processes, threads };

struct scenario {
    const char *name;
    enum how how;       /* 1 rank, or 2 ranks as processes or threads */
    int devices;        /* that it needs */
    int seconds;        /* its deadline */
    void (*run)(int rank);
    const char *environment[4]; /* NAME=value */
    int dies;           /* rank 1 ends by a signal on purpose */
    int no_load;        /* the scenario loads the libraries itself */
};

static const struct scenario *current;

static void *thread_rank(void *rank)
{
    current->run((int)(size_t)rank);
    return NULL;
}

static void in_child(const struct scenario *s, int rank)
{
    int i;
    for (i = 0; i < 4 && s->environment[i] != NULL; i++) putenv((char *)(size_t)s->environment[i]);
    if (getenv("HW_MACHINES") != NULL) setenv("FLAGOSCOMM_HOSTID", rank == 0 ? "first" : "second", 1);
    if (!s->no_load) {
        load_cuda();
        load_ours();
    }
    if (s->how == threads) {
        pthread_t other;
        pthread_create(&other, NULL, thread_rank, (void *)1);
        s->run(0);
        pthread_join(other, NULL);
    } else {
        s->run(rank);
    }
    fflush(NULL);
    exit(0);
}

/* Runs one scenario; what went wrong with its processes is a failed line. */
static void run_scenario(const struct scenario *s)
{
    int count = s->how == processes ? 2 : 1, left = count, i, broken = 0, lines = S->lines;
    pid_t child[2];
    double start = now(), deadline = start + s->seconds * (number_from("HW_PATIENCE", 100) / 100.0);
    char text[512] = "";
    pthread_barrierattr_t attributes;
    scenario_name = s->name;
    current = s;
    ranks_of_scenario = s->how == alone ? 1 : 2;
    if (number_from("HW_DEVICES", 2) < s->devices) {
        snprintf(text, sizeof text, "needs %d devices, here are %d", s->devices, number_from("HW_DEVICES", 2));
        line("SKIP", s->name, text);
        return;
    }
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&S->barrier, &attributes, (unsigned)ranks_of_scenario);
    S->failures = 0;
    memset(S->flag, 0, sizeof S->flag);
    fflush(NULL);
    for (i = 0; i < count; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            in_child(s, i);
        }
    }
    while (left > 0) {
        int status;
        pid_t ended;
        for (i = 0; i < count; i++) {
            if (child[i] == 0) continue;
            ended = waitpid(child[i], &status, WNOHANG);
            if (ended != child[i]) continue;
            child[i] = 0;
            left--;
            if (WIFSIGNALED(status) && s->dies && i == 1) continue;
            if (status != 0) {
                if (!broken) {
                    snprintf(text, sizeof text, "rank %d ended with %s %d", i,
                             WIFSIGNALED(status) ? "signal" : "exit code",
                             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                }
                broken = 1;
                if (deadline > now() + 5) deadline = now() + 5;
            }
        }
        if (left > 0 && now() > deadline) {
            if (!broken) snprintf(text, sizeof text, "no end within %.0f s", now() - start);
            broken = 1;
            for (i = 0; i < count; i++) {
                if (child[i] != 0) {
                    kill(child[i], SIGKILL);
                    waitpid(child[i], &status, 0);
                    child[i] = 0;
                    left--;
                }
            }
        }
        if (left > 0) pause_ms(5);
    }
    if (!broken && S->failures != 0) {
        broken = 1;
        snprintf(text, sizeof text, "a failure behind the last check");
    }
    if (!broken && S->lines == lines) {
        broken = 1;
        snprintf(text, sizeof text, "it made no check");
    }
    if (broken) {
        char detail[3072];
        snprintf(detail, sizeof detail, "%s%s%s", text, S->failures ? "; " : "", S->failures ? S->first : "");
        line("FAIL", s->name, detail);
        S->failed++;
    }
    fprintf(stderr, "# %s: %.1f s\n", s->name, now() - start);
}

/* main() of every program: all scenarios, or those whose names begin with an argument. */
static int run_all(int argc, char **argv, const struct scenario *list, size_t count)
{
    size_t i;
    int j;
    pthread_mutexattr_t attributes;
    S = mmap(NULL, sizeof *S, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (S == MAP_FAILED) return 2;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&S->lock, &attributes);
    for (i = 0; i < count; i++) {
        int wanted = argc < 2;
        for (j = 1; j < argc; j++) wanted |= strncmp(list[i].name, argv[j], strlen(argv[j])) == 0;
        if (wanted) run_scenario(&list[i]);
    }
    return S->failed != 0;
}
#define HW_MAIN(list)                                                                              \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return run_all(argc, argv, list, sizeof list / sizeof *list);                              \
    }

/* ---- what most scenarios do ------------------------------------------------------------------ */

struct rank {
    int rank;
    int device;
    Stream stream;
    flagosComm_t comm;
};

static void set_device(int device)
{
    CUDA(SetDevice(device));
}

__attribute__((unused)) static int get_device(void)
{
    int device = -2;
    CUDA(GetDevice(&device));
    return device;
}

static void *device_memory(size_t bytes)
{
    void *memory = NULL;
    CUDA(Malloc(&memory, bytes));
    if (memory == NULL) give_up("no device memory");
    CUDA(Memset(memory, 0xa5, bytes));
    return memory;
}

/* The unique id of rank 0, on all ranks. */
static flagosUniqueId common_id(int rank)
{
    flagosUniqueId id;
    meet();
    if (rank == 0) FLAGOS(GetUniqueId(&S->id));
    meet();
    id = S->id;
    return id;
}

/* Two ranks, each on the device of its number, with a stream. */
__attribute__((unused)) static struct rank join(int rank, const flagosConfig_t *config)
{
    struct rank r = {rank, rank, NULL, NULL};
    flagosUniqueId id = common_id(rank);
    flagosResult_t result;
    set_device(rank);
    CUDA(StreamCreateWithFlags(&r.stream, 1));
    result = F.CommInitRankConfig(&r.comm, 2, &id, rank, config);
    if (result != flagosSuccess) give_up("init: %d, %s", (int)result, last_text());
    text_of = r.comm;
    return r;
}

__attribute__((unused)) static void leave(struct rank *r)
{
    text_of = NULL;
    FLAGOS(CommDestroy(r->comm));
    CUDA(StreamDestroy(r->stream));
}

__attribute__((unused)) static flagosStream_t stream_of(const struct rank *r)
{
    return (flagosStream_t)r->stream;
}

/* Exact in float: the same sum in any order. */
__attribute__((unused)) static float value(int rank, size_t i, int round)
{
    return (float)((int)((i * 7 + (size_t)rank * 131 + (size_t)round * 17) % 1009) - 500);
}

__attribute__((unused)) static void fill(float *host, size_t count, int rank, int round)
{
    size_t i;
    for (i = 0; i < count; i++) host[i] = value(rank, i, round);
}

/* Puts the values of this rank and round into device memory, and waits for it. */
__attribute__((unused)) static void upload(void *device, size_t count, int rank, int round)
{
    float *host = malloc(count * sizeof *host);
    fill(host, count, rank, round);
    CUDA(Memcpy(device, host, count * sizeof *host, to_device));
    CUDA(DeviceSynchronize());
    free(host);
}

/* `factor` times the sum over both ranks stands there. */
__attribute__((unused)) static void expect_sum(int where, const void *device, size_t count, int round, float factor)
{
    float *host = malloc(count * sizeof *host);
    size_t i, wrong = 0, at = 0;
    CUDA(Memcpy(host, device, count * sizeof *host, any_way));
    for (i = 0; i < count; i++) {
        if (host[i] != factor * (value(0, i, round) + value(1, i, round)) && wrong++ == 0) at = i;
    }
    if (wrong != 0) {
        complain(where, "%zu of %zu values are wrong, the first at %zu: %g instead of %g", wrong, count, at, host[at],
                 factor * (value(0, at, round) + value(1, at, round)));
    }
    free(host);
}

/* The values of one rank stand there. */
__attribute__((unused)) static void expect_values(int where, const void *device, size_t count, int rank, int round)
{
    float *host = malloc(count * sizeof *host);
    size_t i, wrong = 0, at = 0;
    CUDA(Memcpy(host, device, count * sizeof *host, any_way));
    for (i = 0; i < count; i++) {
        if (host[i] != value(rank, i, round) && wrong++ == 0) at = i;
    }
    if (wrong != 0) {
        complain(where, "%zu of %zu values are wrong, the first at %zu: %g instead of %g", wrong, count, at, host[at],
                 value(rank, at, round));
    }
    free(host);
}

/* One all-reduce that must be right: the communicator still works. All ranks call it. */
__attribute__((unused)) static void expect_works(int where, struct rank *r, int round)
{
    enum { count = 5000 };
    int current = get_device();
    void *in, *out;
    flagosResult_t result;
    /* The buffers are the communicator's device's; the call is made with the caller's. */
    set_device(r->device);
    in = device_memory(count * 4);
    out = device_memory(count * 4);
    upload(in, count, r->rank, round);
    set_device(current);
    /* Ranks of one process: no memory call of one while a kernel of the other waits for it. */
    meet();
    result = F.AllReduce(in, out, count, flagosFloat32, flagosSum, r->comm, stream_of(r));
    if (result != flagosSuccess) complain(where, "AllReduce: %d, %s", (int)result, last_text());
    CUDA(StreamSynchronize(r->stream));
    meet();
    expect_sum(where, out, count, round, 1);
    CUDA(Free(in));
    CUDA(Free(out));
    meet();
}

/* A refused call: this code, and a text that has these words. */
__attribute__((unused)) static void expect_refused(int where, flagosResult_t got, flagosResult_t wanted, const char *words)
{
    const char *text = last_text();
    if (got != wanted) complain(where, "result %d instead of %d; text: %s", (int)got, (int)wanted, text);
    else if (words != NULL && strcasestr(text, words) == NULL) complain(where, "no '%s' in: %s", words, text);
}
#endif
