/* Stand-in of NCCL (libnccl.so.2), and with a flavour (-DFAKE_FLAVOUR names a header with names, types and quirks) of every
 * library of NCCL's shape, for ranks on one machine. Collectives move and reduce real data between threads and processes over
 * unix sockets with abstract names (nothing is left in the file system), on the worker threads of the streams of the driver
 * stand-in. With -DFAKE_BARE the collectives do nothing at all (for counting instructions). */
#define _GNU_SOURCE
#ifdef FAKE_FLAVOUR
#include FAKE_FLAVOUR
#else
#include "abi/nccl.h"
#endif
#include "core.h"
#include "knobs.h"
#include <dlfcn.h>
#include <linux/sockios.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#ifndef FAKE_NCCL_VERSION_DEFAULT
#define FAKE_NCCL_VERSION_DEFAULT 23203
#endif
#ifndef PUBLIC
#define PUBLIC __attribute__((visibility("default")))
#endif
/* The library that holds the state of the machine. */
#ifndef FAKE_MACHINE
#define FAKE_MACHINE "libcuda.so.1"
#endif
/* What a flavour may say; the defaults are NCCL's. */
#ifndef FK_TYPE
#define FK_TYPE(abi) (abi)      /* the type's number in this file */
#endif
#ifndef FK_REDOP
#define FK_REDOP(abi) (abi)     /* the same for operators */
#endif
#ifndef FK_FP8_SINCE
#define FK_FP8_SINCE 22403      /* the version from which fp8 is known */
#endif
#define FK_SILENT (-1)
#ifndef FK_WRONG_DEVICE
#define FK_WRONG_DEVICE 0       /* when the current device is not the communicator's: 0 does not matter, FK_SILENT, or a result */
#endif
#ifndef FK_NARROW
#define FK_NARROW 0             /* 64-bit types only in Broadcast and AllGather */
#endif
#ifndef FK_UNSET_GATHER
#define FK_UNSET_GATHER 0       /* Gather and Scatter return 0 and leave the output as it was */
#endif
#ifndef FK_ONE_KIND
#define FK_ONE_KIND 0           /* a group holds one kind of operation; send and receive are one */
#endif
#ifndef FK_PAIRS_ONLY
#define FK_PAIRS_ONLY 0         /* send and receive: two ranks only, and a crash inside a group */
#endif
#ifndef FK_STALE_RESULTS
#define FK_STALE_RESULTS 0      /* the host sees results only after the stream was synchronised */
#endif
#ifndef FK_UNHANDLED_TEXT
#define FK_UNHANDLED_TEXT "cuda"
#endif
#define MAYBE __attribute__((unused))
#define MAGIC 0x6c63636e656b6146ull
#define CHUNK ((size_t)256 << 10)

static const struct fk_core *core;
static pthread_once_t core_once = PTHREAD_ONCE_INIT;

static void open_core(void)
{
    void *h = dlopen(FAKE_MACHINE, RTLD_NOW | RTLD_LOCAL);
    const struct fk_core *(*table)(void) = NULL;
    if (h)
        *(void **)&table = dlsym(h, "fake_driver_table");
    if (table)
        core = table();
}

/* Sites are told to the driver only once something has opened it: ncclGetUniqueId must not. */
static void fk_register_site(struct fk_site *s)
{
    if (core) {
        core->register_site(s);
        return;
    }
    s->known = 0;
}
static int fk_log_device(void) { return core ? core->peek_device() : -1; }
static void fk_check_alive(const char *name)
{
    if (core)
        core->check_alive(name);
}

/* ---- errors ---- */

static pthread_mutex_t error_mu = PTHREAD_MUTEX_INITIALIZER;
static char last_error[512];

__attribute__((format(printf, 2, 3))) static ncclResult_t fail(ncclResult_t code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&error_mu);
    /* vsnprintf empties its buffer first; a reader on another thread must not see that. */
    char text[sizeof last_error];
    int length = vsnprintf(text, sizeof text, fmt, ap);
    if (length >= (int)sizeof text)
        length = sizeof text - 1;
    if (length >= 0)
        memcpy(last_error, text, length + 1);
    pthread_mutex_unlock(&error_mu);
    va_end(ap);
    return code;
}

static ncclResult_t cuda_fail(int code)
{
    return code ? fail(ncclUnhandledCudaError, "Cuda failure %d '%s'", code, core->error_string(code)) : ncclSuccess;
}

static int version(void)
{
    const char *e = getenv("FAKE_CCL_VERSION");
    if (!e || !*e)
        e = getenv("FAKE_NCCL_VERSION");
    return e && *e ? atoi(e) : FAKE_NCCL_VERSION_DEFAULT;
}

/* ---- communicators ---- */

/* The numbers of types and operators inside this file, which are NCCL's. */
enum type { T_INT8, T_UINT8, T_INT32, T_UINT32, T_INT64, T_UINT64, T_HALF, T_FLOAT, T_DOUBLE, T_BF16, T_E4M3, T_E5M2, N_TYPES };
enum { OP_SUM, OP_PROD, OP_MAX, OP_MIN, OP_AVG, N_OPS };

/* The type behind the caller's number, or -1. */
static int type_of(int abi)
{
    int t = FK_TYPE(abi);
    return t < 0 || t >= N_TYPES || (t >= T_E4M3 && version() < FK_FP8_SINCE) ? -1 : t;
}

struct redop { bool used; int dt; bool on_device; char scalar[8]; void *view; };

struct fk_window { struct fk_window *next; void *ptr; size_t n; };

struct fk_comm {
    uint64_t magic;
    int rank, nranks, device, index;
    bool blocking, no_member, suspended, finalized;
    atomic_int revoked;
    atomic_int state; /* what GetAsyncError says */
    atomic_int abort;
    atomic_int refs;
    char secret[33];
    int *fds;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    uint64_t next_ticket, turn;
    int pending, running, helpers;
    unsigned splits, shrinks, grows;
    struct redop *redops;
    int n_redops;
    struct fk_window *windows;
    struct fk_comm *graveyard;
};

static pthread_mutex_t grave_mu = PTHREAD_MUTEX_INITIALIZER;
static struct fk_comm *graves; /* kept, so that a stale handle is refused and does not crash */
static atomic_int comm_counter;

static bool valid(struct fk_comm *c) { return c && c->magic == MAGIC; }

static void comm_unref(struct fk_comm *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    pthread_mutex_lock(&grave_mu);
    c->graveyard = graves;
    graves = c;
    pthread_mutex_unlock(&grave_mu);
}

static struct fk_comm *comm_new(int device, bool blocking)
{
    struct fk_comm *c = calloc(1, sizeof *c);
    c->magic = MAGIC;
    c->device = device;
    c->blocking = blocking;
    c->state = ncclInProgress;
    c->refs = 1;
    c->index = atomic_fetch_add(&comm_counter, 1);
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->cv, NULL);
    return c;
}

/* Closes everything; the handle is refused from here on. */
static void comm_close(struct fk_comm *c)
{
    c->magic = 0;
    if (c->fds)
        for (int i = 0; i < c->nranks; i++)
            if (c->fds[i] >= 0)
                close(c->fds[i]);
    free(c->fds);
    c->fds = NULL;
    free(c->redops);
    c->redops = NULL;
    while (c->windows) {
        struct fk_window *w = c->windows;
        c->windows = w->next;
        free(w);
    }
    comm_unref(c);
}

/* Makes everything that waits inside this communicator return. */
static void comm_stop(struct fk_comm *c)
{
    pthread_mutex_lock(&c->mu);
    c->abort = 1;
    if (c->fds)
        for (int i = 0; i < c->nranks; i++)
            if (c->fds[i] >= 0)
                shutdown(c->fds[i], SHUT_RDWR);
    pthread_cond_broadcast(&c->cv);
    pthread_mutex_unlock(&c->mu);
}

/* The part of ncclConfig_t that matters here, whatever the flavour's declaration. */
struct fk_config { size_t size; unsigned magic, version; int blocking, cga, min_ctas, max_ctas; };

static struct fk_config config_head(const void *in)
{
    struct fk_config c = {0};
#ifndef FK_OPAQUE_CONFIG /* else its layout is not known: all of them are refused */
    if (in) {
        memcpy(&c.size, in, sizeof c.size);
        if (c.size >= 16)
            memcpy(&c, in, c.size < sizeof c ? c.size : sizeof c);
    }
#else
    (void)in;
#endif
    return c;
}

static ncclResult_t read_config(const void *in, bool *blocking)
{
    enum { UNDEFINED = INT32_MIN };
    struct fk_config c = config_head(in);
    *blocking = true;
    if (!in)
        return ncclSuccess;
    if (c.size < 16)
        return fail(ncclInvalidArgument, "ncclConfig_t argument size %zu is too small", c.size);
    if (c.magic != 0xcafebeefu)
        return fail(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    if (c.size < 24 || c.version < 21400 || c.blocking == UNDEFINED)
        return ncclSuccess;
    if (c.blocking != 0 && c.blocking != 1)
        return fail(ncclInvalidArgument, "Invalid config blocking attribute value %d", c.blocking);
    if (c.size >= 32 && c.version >= 21700 && c.min_ctas != UNDEFINED && c.max_ctas != UNDEFINED &&
        (c.min_ctas <= 0 || c.max_ctas <= 0 || c.min_ctas > c.max_ctas))
        return fail(ncclInvalidArgument, "Invalid config min/max channels attribute value %d/%d", c.min_ctas, c.max_ctas);
    *blocking = c.blocking == 1;
    return ncclSuccess;
}

/* ---- sockets ---- */

struct hello {
    int32_t rank, nranks, device, version, color, key;
    char listener[40];
};

static socklen_t address(struct sockaddr_un *a, const char *name)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "fakenccl-%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int listen_on(const char *name)
{
    struct sockaddr_un a;
    socklen_t len = address(&a, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&a, len) || listen(fd, 4096))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void random_name(char out[33])
{
    unsigned char r[16];
    while (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r) {
    }
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", r[i]);
}

static void derive_name(char out[33], const char *secret, const char *what, unsigned a, int b)
{
    char text[128];
    int n = snprintf(text, sizeof text, "%s/%s/%u/%d", secret, what, a, b);
    uint64_t h1 = 0xcbf29ce484222325ull, h2 = 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < n; i++) {
        h1 = (h1 ^ (unsigned char)text[i]) * 0x100000001b3ull;
        h2 = (h2 + (unsigned char)text[i]) * 0xff51afd7ed558ccdull;
        h2 ^= h2 >> 29;
    }
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h1, (unsigned long long)h2);
}

/* Waits until fd can be read or written; false when `abort` is set. */
static bool wait_fd(int fd, short events, atomic_int *abort)
{
    for (;;) {
        if (abort && *abort)
            return false;
        struct pollfd p = {.fd = fd, .events = events};
        if (poll(&p, 1, 10) > 0)
            return true;
    }
}

static bool read_all(int fd, void *buf, size_t n, atomic_int *abort)
{
    for (char *p = buf; n;) {
        if (!wait_fd(fd, POLLIN, abort))
            return false;
        ssize_t k = recv(fd, p, n, MSG_DONTWAIT);
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
    return true;
}

static bool write_all(int fd, const void *buf, size_t n, atomic_int *abort)
{
    for (const char *p = buf; n;) {
        if (!wait_fd(fd, POLLOUT, abort))
            return false;
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
    return true;
}

/* Connects; if `retry`, waits for the listener to appear. -1 on failure. */
static int connect_to(const char *name, bool retry, atomic_int *abort)
{
    struct sockaddr_un a;
    socklen_t len = address(&a, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    while (connect(fd, (struct sockaddr *)&a, len)) {
        if (errno == EINTR || errno == EAGAIN) {
        } else if (!retry || errno != ECONNREFUSED)
            goto bad;
        if (abort && *abort)
            goto bad;
        fk_msleep(1);
    }
    return fd;
bad:
    close(fd);
    return -1;
}

/* The root of one rendezvous: collects a hello of every rank, then sends everybody the table. */
static void *root_main(void *arg)
{
    int lfd = (int)(intptr_t)arg, n = 0, got = 0, *fds = NULL;
    struct hello *table = NULL;
    int32_t status = ncclSuccess;
    while (!n || got < n) {
        int fd = accept4(lfd, NULL, NULL, SOCK_CLOEXEC);
        struct hello h;
        if (fd < 0)
            continue;
        if (!read_all(fd, &h, sizeof h, NULL)) {
            close(fd);
            continue;
        }
        if (!n) {
            n = h.nranks;
            fds = calloc((size_t)n, sizeof *fds);
            table = calloc((size_t)n, sizeof *table);
        }
        if (h.nranks != n || h.rank < 0 || h.rank >= n || fds[h.rank]) {
            status = h.nranks == n ? ncclInvalidUsage : ncclInternalError;
            write_all(fd, &status, sizeof status, NULL);
            close(fd);
            break; /* those who are here are told the same */
        }
        fds[h.rank] = fd;
        table[h.rank] = h;
        got++;
    }
    close(lfd);
    for (int i = 0; i < n; i++)
        if (fds[i]) {
            if (write_all(fds[i], &status, sizeof status, NULL) && !status)
                write_all(fds[i], table, sizeof *table * (size_t)n, NULL);
            close(fds[i]);
        }
    free(fds);
    free(table);
    return NULL;
}

static bool spawn(void *(*fn)(void *), void *arg)
{
    pthread_t t;
    pthread_attr_t a;
    sigset_t all, old;
    sigfillset(&all);
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&a, 512 << 10);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&t, &a, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r == 0;
}

static ncclResult_t start_root(const char *name)
{
    int fd = listen_on(name);
    if (fd < 0 || !spawn(root_main, (void *)(intptr_t)fd))
        return fail(ncclSystemError, "bootstrap root: %s", strerror(errno));
    return ncclSuccess;
}

/* ---- unique ids ---- */

static const char ID_MAGIC[8] = "FKNCCLID";

static unsigned checksum(const ncclUniqueId *id)
{
    unsigned h = 2166136261u;
    for (int i = 0; i < 124; i++)
        h = (h ^ (unsigned char)id->internal[i]) * 16777619u;
    return h;
}

static void id_make(ncclUniqueId *id, const char name[33])
{
    for (int i = 0; i < 128; i++)
        id->internal[i] = (char)(i * 37); /* every byte matters, zero bytes among them */
    memcpy(id->internal, ID_MAGIC, 8);
    memcpy(id->internal + 8, name, 32);
    memset(id->internal + 40, 0, 8);
    unsigned sum = checksum(id);
    memcpy(id->internal + 124, &sum, 4);
}

static bool id_name(const ncclUniqueId *id, char name[33])
{
    unsigned sum = checksum(id);
    if (memcmp(id->internal, ID_MAGIC, 8) || memcmp(id->internal + 124, &sum, 4))
        return false;
    memcpy(name, id->internal + 8, 32);
    name[32] = 0;
    return true;
}

/* ---- making communicators ---- */

enum { NO_COLOR = -1, SHRINK_ABORT = 1 };

struct job {
    struct fk_comm *comm, *parent;
    ncclComm_t *out;
    char name[33];
    int rank, nranks, color, key;
    bool retry, detached;
    ncclResult_t result;
    atomic_int over;
    struct job *next;
};

struct order { int color, key, rank; };
static int by_key(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->rank > y->rank) - (x->rank < y->rank);
}

static ncclResult_t job_body(struct job *j)
{
    struct fk_comm *c = j->comm;
    ncclResult_t r = ncclSuccess;
    struct hello me = {j->rank, j->nranks, core->physical(c->device), version(), j->color, j->key, ""}, *table = NULL;
    struct order *order = NULL;
    char listener[33];
    random_name(listener);
    memcpy(me.listener, listener, 33);
    int lfd = listen_on(listener), fd = connect_to(j->name, j->retry, &c->abort), n = 0, *fds = NULL;
    int32_t status = ncclRemoteError;
    if (lfd < 0 || fd < 0) {
        r = fail(c->abort ? ncclRemoteError : ncclSystemError, "bootstrap: no connection to the root: %s", strerror(errno));
        goto out;
    }
    if (!write_all(fd, &me, sizeof me, &c->abort) || !read_all(fd, &status, sizeof status, &c->abort) || status) {
        r = fail((ncclResult_t)status, status == ncclInvalidUsage ? "Bootstrap Root : rank %d of %d ranks has already checked in"
                 : status == ncclInternalError ? "Bootstrap Root : mismatch in rank count from procs (rank %d says %d)"
                                               : "bootstrap: lost the root (rank %d of %d)", j->rank, j->nranks);
        goto out;
    }
    table = calloc((size_t)j->nranks, sizeof *table);
    order = calloc((size_t)j->nranks, sizeof *order);
    if (!read_all(fd, table, sizeof *table * (size_t)j->nranks, &c->abort)) {
        r = fail(ncclRemoteError, "bootstrap: lost the root");
        goto out;
    }
    if (j->color == NO_COLOR) {
        c->no_member = true;
        goto out;
    }
    for (int i = 0; i < j->nranks; i++)
        if (table[i].color == j->color)
            order[n++] = (struct order){table[i].color, table[i].key, i};
    qsort(order, (size_t)n, sizeof *order, by_key);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            if (table[order[i].rank].device == table[order[k].rank].device) {
                r = fail(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", k, i,
                         0x10 + table[order[i].rank].device);
                goto out;
            }
            if (table[order[i].rank].version != table[order[k].rank].version) {
                r = fail(ncclInvalidUsage, "Mismatched NCCL version detected : rank %d %d rank %d %d", k,
                         table[order[k].rank].version, i, table[order[i].rank].version);
                goto out;
            }
        }
    fds = malloc((size_t)n * sizeof *fds);
    int my = -1;
    for (int i = 0; i < n; i++) {
        fds[i] = -1;
        if (order[i].rank == j->rank)
            my = i;
    }
    for (int i = 0; i < my; i++) {
        int32_t who = my;
        fds[i] = connect_to(table[order[i].rank].listener, false, &c->abort);
        if (fds[i] < 0 || !write_all(fds[i], &who, sizeof who, &c->abort)) {
            r = fail(ncclRemoteError, "no connection to rank %d", i);
            goto out;
        }
    }
    for (int i = my + 1; i < n; i++) {
        int32_t who;
        int p = wait_fd(lfd, POLLIN, &c->abort) ? accept4(lfd, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (p < 0 || !read_all(p, &who, sizeof who, &c->abort) || who <= my || who >= n) {
            if (p >= 0)
                close(p);
            r = fail(ncclRemoteError, "no connection from a rank");
            goto out;
        }
        fds[who] = p;
    }
    derive_name(c->secret, j->name, "comm", 0, j->color);
    pthread_mutex_lock(&c->mu);
    c->rank = my;
    c->nranks = n;
    c->fds = fds;
    fds = NULL;
    pthread_mutex_unlock(&c->mu);
out:
    if (fds) {
        for (int i = 0; i < n; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        free(fds);
    }
    if (lfd >= 0)
        close(lfd);
    if (fd >= 0)
        close(fd);
    free(table);
    free(order);
    return r;
}

/* Hook for libraries that make one communicator of a device after the other: with FAKE_INIT_ORDER=1 (or compiled in) a
 * process that makes its communicators in another order than its peers waits for ever, or until it is aborted. */
#ifndef FAKE_INIT_ORDER
#define FAKE_INIT_ORDER 0
#endif
static atomic_bool init_busy[64]; /* by device */

static bool init_begin(struct fk_comm *c)
{
    const char *e = getenv("FAKE_INIT_ORDER");
    if (e && *e ? *e != '1' : !FAKE_INIT_ORDER)
        return false;
    while (atomic_exchange(&init_busy[c->device], true)) {
        if (c->abort)
            return false;
        fk_msleep(1);
    }
    return true;
}

static void *job_main(void *arg)
{
    struct job *j = arg;
    struct fk_comm *c = j->comm;
    core->poke_device(c->device);
    bool alone = init_begin(c);
    j->result = job_body(j);
    if (alone)
        atomic_store(&init_busy[c->device], false);
    pthread_mutex_lock(&c->mu);
    if (!c->abort || j->result)
        c->state = j->result;
    c->helpers--;
    pthread_cond_broadcast(&c->cv);
    pthread_mutex_unlock(&c->mu);
    bool detached = j->detached;
    struct fk_comm *parent = j->parent;
    if (parent) { /* now the child shows itself, and the parent is free again */
        if (!c->no_member && !j->result)
            __atomic_store_n(j->out, c, __ATOMIC_RELEASE);
        pthread_mutex_lock(&parent->mu);
        if (parent->state == ncclInProgress)
            parent->state = j->result;
        parent->helpers--;
        pthread_cond_broadcast(&parent->cv);
        pthread_mutex_unlock(&parent->mu);
        comm_unref(parent);
    }
    j->over = 1; /* the job is its waiter's from here on */
    if (detached) {
        if (c->no_member)
            comm_close(c);
        free(j);
    }
    comm_unref(c);
    return NULL;
}

/* Runs all jobs side by side; if one fails, the others are stopped and all fail. */
static ncclResult_t run_jobs(struct job *list)
{
    ncclResult_t r = ncclSuccess;
    bool later = false;
    for (struct job *j = list; j; j = j->next)
        if (!j->comm->blocking)
            later = true;
    for (struct job *j = list, *next; j; j = next) {
        next = j->next;
        j->detached = later;
        atomic_fetch_add(&j->comm->refs, 1);
        j->comm->helpers++;
        if (!spawn(job_main, j))
            abort();
    }
    if (later) /* a group is blocking or not as a whole */
        return ncclInProgress;
    for (bool open = true; open;) {
        open = false;
        for (struct job *j = list; j; j = j->next) {
            if (!j->over)
                open = true;
            else if (j->result && !r) {
                r = j->result;
                for (struct job *k = list; k; k = k->next)
                    if (k != j)
                        comm_stop(k->comm);
            }
        }
        if (open)
            fk_msleep(1);
    }
    while (list) {
        struct job *j = list;
        list = j->next;
        if (r || j->comm->no_member) {
            *j->out = NULL;
            comm_close(j->comm);
        }
        free(j);
    }
    return r;
}

/* ---- element types ---- */

static const size_t sizes[N_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static float small_decode(unsigned b, int ebits, int mbits)
{
    int bias = (1 << (ebits - 1)) - 1;
    unsigned e = (b >> mbits) & ((1u << ebits) - 1), m = b & ((1u << mbits) - 1);
    float v;
    if (ebits == 4 && (b & 0x7f) == 0x7f)
        v = NAN;
    else if (ebits == 5 && e == 31)
        v = m ? NAN : INFINITY;
    else if (!e)
        v = ldexpf((float)m, 1 - bias - mbits);
    else
        v = ldexpf((float)(m | 1u << mbits), (int)e - bias - mbits);
    return b & 0x80 ? -v : v;
}

/* Rounds to nearest even; out of range becomes the largest finite value. */
static uint8_t small_encode(float x, int ebits, int mbits)
{
    int bias = (1 << (ebits - 1)) - 1, e;
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float a = fabsf(x), max = ebits == 4 ? 448.0f : 57344.0f;
    if (isnan(x))
        return 0x7f;
    if (a >= max)
        return sign | (ebits == 4 ? 0x7e : 0x7b);
    if (a == 0)
        return sign;
    e = ilogbf(a);
    if (e < 1 - bias)
        e = 1 - bias;
    unsigned r = (unsigned)rintf(ldexpf(a, mbits - e));
    if (r >> (mbits + 1)) {
        r >>= 1;
        e++;
    }
    if (!(r >> mbits))
        return sign | (uint8_t)r;
    return sign | (uint8_t)((unsigned)(e + bias) << mbits | (r & ((1u << mbits) - 1)));
}

static float bf16_decode(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint16_t bf16_encode(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (isnan(f))
        return 0x7fff;
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static float half_decode(uint16_t b)
{
    _Float16 h;
    memcpy(&h, &b, 2);
    return (float)h;
}
static uint16_t half_encode(float f)
{
    _Float16 h = (_Float16)f;
    uint16_t b;
    memcpy(&b, &h, 2);
    return b;
}
static float e4m3_decode(uint8_t b) { return small_decode(b, 4, 3); }
static uint8_t e4m3_encode(float f) { return small_encode(f, 4, 3); }
static float e5m2_decode(uint8_t b) { return small_decode(b, 5, 2); }
static uint8_t e5m2_encode(float f) { return small_encode(f, 5, 2); }
#define SAME(x) (x)

/* Elements may lie unaligned: they are read and written through memcpy. */
#define FOLD(T, A, WRAP, DEC, ENC, DIV) \
    for (size_t i = 0; i < n; i++) { \
        T x; \
        memcpy(&x, in[0] + i * sizeof(T), sizeof(T)); \
        A a = DEC(x); \
        for (int r = 1; r < ranks; r++) { \
            memcpy(&x, in[r] + i * sizeof(T), sizeof(T)); \
            A b = DEC(x); \
            switch (op) { \
            case OP_PROD: a = (A)((WRAP)a * (WRAP)b); break; \
            case OP_MAX: a = a > b ? a : b; break; \
            case OP_MIN: a = a < b ? a : b; break; \
            default: a = (A)((WRAP)a + (WRAP)b); \
            } \
        } \
        if (op == OP_AVG) \
            a = (A)(a / (DIV)ranks); \
        x = ENC(a); \
        memcpy(out + i * sizeof(T), &x, sizeof(T)); \
    } \
    break

/* out[i] = in[0][i] op in[1][i] ...; out may be one of the inputs. */
static void fold(char *out, char *const *in, int ranks, size_t n, int dt, int op)
{
    switch (dt) {
    case T_INT8: FOLD(int8_t, int8_t, unsigned, SAME, SAME, int8_t);
    case T_UINT8: FOLD(uint8_t, uint8_t, unsigned, SAME, SAME, uint8_t);
    case T_INT32: FOLD(int32_t, int32_t, uint32_t, SAME, SAME, int32_t);
    case T_UINT32: FOLD(uint32_t, uint32_t, uint32_t, SAME, SAME, uint32_t);
    case T_INT64: FOLD(int64_t, int64_t, uint64_t, SAME, SAME, int64_t);
    case T_UINT64: FOLD(uint64_t, uint64_t, uint64_t, SAME, SAME, uint64_t);
    case T_HALF: FOLD(uint16_t, float, float, half_decode, half_encode, float);
    case T_FLOAT: FOLD(float, float, float, SAME, SAME, float);
    case T_DOUBLE: FOLD(double, double, double, SAME, SAME, double);
    case T_BF16: FOLD(uint16_t, float, float, bf16_decode, bf16_encode, float);
    case T_E4M3: FOLD(uint8_t, float, float, e4m3_decode, e4m3_encode, float);
    case T_E5M2: FOLD(uint8_t, float, float, e5m2_decode, e5m2_encode, float);
    default: break;
    }
}

/* ---- operations ---- */

enum kind { ALLREDUCE = 1, REDUCE, REDUCESCATTER, BROADCAST, ALLGATHER, ALLTOALL, GATHER, SCATTER, SEND, RECV };

struct op {
    enum kind kind;
    char *send, *recv; /* hidden views */
    size_t count, out; /* out: bytes that the operation writes here */
    int dt;
    int redop;         /* 0..4; PreMulSum is a sum after scaling */
    int peer;          /* or root */
    bool scaled;
    char scalar[8];
    char *scalar_view;
};

struct plan {
    fk_task t;
    struct fk_comm *comm;
    int n;
    struct op ops[];
};

struct head { uint64_t bytes; uint32_t kind, what; };
struct xfer { int peer; bool out; char *p; size_t n, off; struct head head, seen; };

/* For ever, or until the communicator is aborted: what a kernel without its peer does. */
static int stuck(struct fk_comm *c)
{
    while (!c->abort)
        fk_msleep(2);
    return ncclRemoteError;
}

/* Moves all transfers at once; those with one peer and direction go in order. Non-zero when aborted. */
static int progress(struct fk_comm *c, struct xfer *x, int n)
{
    struct pollfd *polls = calloc((size_t)n + 1, sizeof *polls);
    unsigned char *busy = calloc((size_t)c->nranks, 1);
    int r = 0;
    for (;;) {
        if (c->abort) {
            r = ncclRemoteError;
            break;
        }
        int np = 0;
        bool open = false, moved = false;
        memset(busy, 0, (size_t)c->nranks);
        for (int i = 0; i < n; i++) {
            struct xfer *t = &x[i];
            unsigned char bit = t->out ? 1 : 2;
            size_t total = sizeof t->head + t->n;
            if (t->off >= total || busy[t->peer] & bit)
                continue;
            for (;;) {
                bool head = t->off < sizeof t->head;
                char *p = head ? (t->out ? (char *)&t->head : (char *)&t->seen) + t->off : t->p + (t->off - sizeof t->head);
                size_t want = head ? sizeof t->head - t->off : total - t->off;
                ssize_t k = 0;
                if (want)
                    k = t->out ? send(c->fds[t->peer], p, want, MSG_DONTWAIT | MSG_NOSIGNAL | (head ? MSG_MORE : 0))
                               : recv(c->fds[t->peer], p, want, MSG_DONTWAIT);
                if (k > 0) {
                    t->off += (size_t)k;
                    moved = true;
                    if (!t->out && t->off == sizeof t->head && memcmp(&t->head, &t->seen, sizeof t->head)) {
                        fk_log("mismatch", 0, "rank=%d peer=%d expected bytes=%llu kind=%u what=%u, got bytes=%llu kind=%u what=%u",
                               c->rank, t->peer, (unsigned long long)t->head.bytes, t->head.kind, t->head.what,
                               (unsigned long long)t->seen.bytes, t->seen.kind, t->seen.what);
                        r = stuck(c);
                        goto out;
                    }
                    if (t->off == total)
                        break;
                    continue;
                }
                if (k < 0 && errno == EINTR)
                    continue;
                if (k < 0 && errno == EAGAIN)
                    break;
                if (!c->abort)
                    c->state = ncclRemoteError; /* the peer is gone */
                r = stuck(c);
                goto out;
            }
            if (t->off < total) {
                open = true;
                busy[t->peer] |= bit;
                polls[np++] = (struct pollfd){.fd = c->fds[t->peer], .events = t->out ? POLLOUT : POLLIN};
            } else
                moved = true;
        }
        if (!open && !moved)
            break;
        if (!moved)
            poll(polls, (nfds_t)np, 20);
    }
out:
    free(polls);
    free(busy);
    return r;
}

static struct xfer xfer(const struct op *o, int peer, bool out, void *p, size_t bytes)
{
    uint32_t kind = o->kind == RECV ? SEND : o->kind;
    return (struct xfer){.peer = peer, .out = out, .p = p, .n = bytes,
                         .head = {bytes, kind, (uint32_t)o->dt << 8 | (kind == SEND ? 0 : (uint32_t)o->redop)}};
}

/* This rank's input of a reduction, scaled if the operator asks for it. */
static char *scaled_input(const struct op *o, size_t total)
{
    size_t bytes = total * sizes[o->dt];
    char *buf = malloc(bytes), *one = malloc(bytes);
    const char *scalar = o->scalar_view ? o->scalar_view : o->scalar;
    for (size_t i = 0; i < total; i++)
        memcpy(one + i * sizes[o->dt], scalar, sizes[o->dt]);
    memcpy(buf, o->send, bytes);
    char *in[2] = {buf, one};
    fold(buf, in, 2, total, o->dt, OP_PROD);
    free(one);
    return buf;
}

static int run_reduce(struct fk_comm *c, const struct op *o, const char *src)
{
    size_t es = sizes[o->dt], bytes = o->count * es;
    int n = c->nranks, root = o->kind == REDUCE ? o->peer : 0, r = 0;
    struct xfer *x = calloc((size_t)n, sizeof *x);
    char **in = calloc((size_t)n, sizeof *in), *tmp = NULL;
    if (c->rank == root) {
        tmp = malloc((size_t)n * CHUNK);
        for (int i = 0; i < n; i++)
            in[i] = tmp + (size_t)i * CHUNK;
    }
    for (size_t at = 0; at < bytes && !r; at += CHUNK) {
        size_t k = bytes - at < CHUNK ? bytes - at : CHUNK;
        int m = 0;
        if (c->rank == root) {
            for (int i = 0; i < n; i++)
                if (i != root)
                    x[m++] = xfer(o, i, false, in[i], k);
            memcpy(in[root], src + at, k);
            r = progress(c, x, m);
            if (r)
                break;
            fold(o->recv + at, in, n, k / es, o->dt, o->redop);
            m = 0;
            for (int i = 0; i < n; i++)
                if (i != root)
                    x[m++] = xfer(o, i, true, o->recv + at, k);
        } else {
            x[0] = xfer(o, root, true, (char *)src + at, k);
            r = progress(c, x, 1);
            x[0] = xfer(o, root, false, o->recv + at, k);
            m = 1;
        }
        if (!r && o->kind == ALLREDUCE)
            r = progress(c, x, m);
    }
    free(tmp);
    free(in);
    free(x);
    return r;
}

static int run_collective(struct fk_comm *c, const struct op *o)
{
    size_t es = sizes[o->dt], bytes = o->count * es;
    int n = c->nranks, me = c->rank, m = 0, r;
    char *scaled = o->scaled ? scaled_input(o, o->count * (o->kind == REDUCESCATTER ? (size_t)n : 1)) : NULL;
    char *src = scaled ? scaled : o->send, *tmp = NULL, *copy = NULL;
    struct xfer *x;
    if (o->kind == ALLREDUCE || o->kind == REDUCE) {
        r = run_reduce(c, o, src);
        free(scaled);
        return r;
    }
    x = calloc(2 * (size_t)n, sizeof *x);
    if (o->kind == REDUCESCATTER)
        tmp = malloc((size_t)n * bytes);
    if (o->kind == ALLTOALL && o->send == o->recv) {
        copy = malloc((size_t)n * bytes);
        memcpy(copy, src, (size_t)n * bytes);
        src = copy;
    }
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)i * bytes;
        char *out = NULL, *in = NULL;
        switch (o->kind) {
        case REDUCESCATTER: out = src + at; in = tmp + at; break;
        case BROADCAST:
            if (me == o->peer)
                out = src;
            if (i == o->peer)
                in = o->recv;
            break;
        case ALLGATHER: out = src; in = o->recv + at; break;
        case ALLTOALL: out = src + at; in = o->recv + at; break;
        case GATHER:
            if (i == o->peer)
                out = src;
            if (me == o->peer)
                in = o->recv + at;
            break;
        default: /* SCATTER */
            if (me == o->peer)
                out = src + at;
            if (i == o->peer)
                in = o->recv;
        }
        if (i == me) {
            if (in && out && in != out)
                memmove(in, out, bytes);
            continue;
        }
        if (out)
            x[m++] = xfer(o, i, true, out, bytes);
        if (in)
            x[m++] = xfer(o, i, false, in, bytes);
    }
    r = progress(c, x, m);
    if (!r && o->kind == REDUCESCATTER) {
        char **in = calloc((size_t)n, sizeof *in);
        for (int i = 0; i < n; i++)
            in[i] = tmp + (size_t)i * bytes;
        fold(o->recv, in, n, o->count, o->dt, o->redop);
        free(in);
    }
    free(scaled);
    free(tmp);
    free(copy);
    free(x);
    return r;
}

/* For libraries whose sends end only when the peer has taken everything: a socket alone would hold small messages. */
static void sends_taken(struct fk_comm *c, const struct op *ops, int n)
{
#ifdef FAKE_SENDS_WAIT
    for (int i = 0; i < n; i++)
        for (int left = 1; ops[i].kind == SEND && ops[i].peer != c->rank && !c->abort;) {
            if (ioctl(c->fds[ops[i].peer], SIOCOUTQ, &left) || !left)
                break;
            fk_msleep(1);
        }
#else
    (void)c, (void)ops, (void)n;
#endif
}

static void run_ops(struct fk_comm *c, struct op *ops, int n)
{
    struct xfer *x = calloc((size_t)n + 1, sizeof *x);
    int m = 0;
    for (int i = 0; i < n; i++)
        if (ops[i].kind < SEND && run_collective(c, &ops[i]))
            goto out;
    for (int i = 0, self = 0; i < n; i++) {
        struct op *o = &ops[i];
        if (o->kind < SEND)
            continue;
        if (o->peer != c->rank) {
            x[m++] = xfer(o, o->peer, o->kind == SEND, o->kind == SEND ? o->send : o->recv, o->count * sizes[o->dt]);
            continue;
        }
        if (o->kind == RECV) /* its send is the one with the same number among the sends to self */
            continue;
        int k = 0;
        for (int j = 0; j < n; j++)
            if (ops[j].kind == RECV && ops[j].peer == c->rank && k++ == self)
                memmove(ops[j].recv, o->send, o->count * sizes[o->dt]);
        self++;
    }
    if (!progress(c, x, m))
        sends_taken(c, ops, n);
out:
    free(x);
}

static uint64_t plan_prepare(fk_task *t)
{
    struct fk_comm *c = ((struct plan *)t)->comm;
    pthread_mutex_lock(&c->mu);
    uint64_t ticket = c->next_ticket++;
    c->pending++;
    pthread_mutex_unlock(&c->mu);
    return ticket;
}

/* The work of one communicator runs in the order of its launches, whatever the streams. */
static void plan_run(fk_task *t, uint64_t ticket)
{
    struct plan *p = (struct plan *)t;
    struct fk_comm *c = p->comm;
    pthread_mutex_lock(&c->mu);
    while (c->turn != ticket && !c->abort)
        pthread_cond_wait(&c->cv, &c->mu);
    bool go = !c->abort && c->fds;
    c->running += go;
    pthread_mutex_unlock(&c->mu);
    for (int i = 0; FK_STALE_RESULTS && go && i < p->n; i++)
        if (p->ops[i].out)
            core->hold_back(p->ops[i].recv, p->ops[i].out);
    if (go)
        run_ops(c, p->ops, p->n);
    pthread_mutex_lock(&c->mu);
    c->running -= go;
    c->turn++;
    c->pending--;
    pthread_cond_broadcast(&c->cv);
    pthread_mutex_unlock(&c->mu);
}

static void plan_drop(fk_task *t)
{
    comm_unref(((struct plan *)t)->comm);
    free(t);
}

/* ---- groups ---- */

struct item { struct fk_comm *comm; cudaStream_t stream; struct op op; };

static _Thread_local struct {
    int depth;
    ncclResult_t error;
    int kind; /* with FK_ONE_KIND: what the group holds */
    struct item *items;
    int n, cap;
    struct job *jobs, **jobs_end;
} group;

static ncclResult_t note(ncclResult_t r)
{
    if (group.depth && r && r != ncclInProgress && !group.error)
        group.error = r;
    return r;
}

/* Checks everything, then launches: nothing is launched if something is wrong. */
static ncclResult_t launch(struct item *items, int n)
{
    for (int i = 0; i < n; i++) {
        int dev, r = core->stream_device(items[i].stream, items[i].comm->device, &dev), sends = 0, recvs = 0;
        if (!r && dev != items[i].comm->device)
            r = cudaErrorInvalidResourceHandle;
        if (r)
            return cuda_fail(r);
        for (int j = 0; j < n; j++)
            if (items[j].comm == items[i].comm && items[j].op.peer == items[j].comm->rank) {
                sends += items[j].op.kind == SEND;
                recvs += items[j].op.kind == RECV;
            }
        if (sends != recvs)
            return fail(ncclInvalidUsage, "Trying to send to self without a matching recv");
    }
    for (int i = 0; i < n; i++) {
        struct fk_comm *c = items[i].comm;
        bool first = true;
        for (int j = 0; j < i && first; j++)
            first = items[j].comm != c;
        if (!first)
            continue;
        struct plan *p = calloc(1, sizeof *p + (size_t)n * sizeof p->ops[0]);
        p->t = (fk_task){.run = plan_run, .prepare = plan_prepare, .drop = plan_drop, .refs = 1};
        p->comm = c;
        atomic_fetch_add(&c->refs, 1);
        int r = 0;
        for (int j = i; j < n; j++)
            if (items[j].comm == c) {
                p->ops[p->n++] = items[j].op;
                if (items[j].stream != items[i].stream && !r)
                    r = core->stream_join(items[i].stream, items[j].stream, c->device);
            }
        if (r)
            plan_drop(&p->t);
        else
            r = core->stream_push(items[i].stream, c->device, &p->t);
        for (int j = i; j < n && !r; j++)
            if (items[j].comm == c && items[j].stream != items[i].stream)
                r = core->stream_join(items[j].stream, items[i].stream, c->device);
        if (r)
            return cuda_fail(r);
    }
    return ncclSuccess;
}

/* Communicators that do not block launch later, from another thread. */
struct later { int n; struct item items[]; };
static void *launch_later(void *arg)
{
    struct later *l = arg;
    fk_msleep(1);
    core->poke_device(l->items[0].comm->device);
    ncclResult_t r = launch(l->items, l->n);
    for (int i = 0; i < l->n; i++) {
        struct fk_comm *c = l->items[i].comm;
        pthread_mutex_lock(&c->mu);
        if (c->state == ncclInProgress || r)
            c->state = r;
        c->helpers--;
        pthread_cond_broadcast(&c->cv);
        pthread_mutex_unlock(&c->mu);
        comm_unref(c);
    }
    free(l);
    return NULL;
}

static ncclResult_t launch_now_or_later(struct item *items, int n)
{
    bool later = false;
    for (int i = 0; i < n; i++)
        if (!items[i].comm->blocking)
            later = true;
    if (!later)
        return launch(items, n);
    struct later *l = malloc(sizeof *l + (size_t)n * sizeof *items);
    l->n = n;
    memcpy(l->items, items, (size_t)n * sizeof *items);
    for (int i = 0; i < n; i++) {
        struct fk_comm *c = items[i].comm;
        pthread_mutex_lock(&c->mu);
        c->state = ncclInProgress;
        c->helpers++;
        pthread_mutex_unlock(&c->mu);
        atomic_fetch_add(&c->refs, 1);
    }
    if (!spawn(launch_later, l))
        abort();
    return ncclInProgress;
}

static void group_reset(void)
{
    free(group.items);
    memset(&group, 0, sizeof group);
}

static ncclResult_t group_end(bool simulate)
{
    if (!group.depth)
        return fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--group.depth)
        return ncclSuccess;
    ncclResult_t r = group.error, started = ncclSuccess;
    struct job *jobs = group.jobs;
    group.jobs = NULL;
    if (simulate || r) {
        while (jobs) {
            struct job *j = jobs;
            jobs = j->next;
            if (r) {
                *j->out = NULL;
                comm_close(j->comm);
            }
            free(j);
        }
    } else {
        if (jobs)
            r = run_jobs(jobs);
        if (r == ncclInProgress) {
            started = r;
            r = ncclSuccess;
        }
        if (!r && group.n)
            r = launch_now_or_later(group.items, group.n);
    }
    group_reset();
    return r ? r : started;
}

static ncclResult_t add_job(struct job *j)
{
    if (group.depth) {
        if (!group.jobs)
            group.jobs_end = &group.jobs;
        *group.jobs_end = j;
        group.jobs_end = &j->next;
        return ncclSuccess;
    }
    return run_jobs(j);
}

/* ---- entries ---- */

/* Two levels, so that the names of a flavour are replaced before they become text. */
#define ENTER_COMM(...) ENTER_COMM_(__VA_ARGS__)
#define LEAVE(...) LEAVE_(__VA_ARGS__)
#define ENTER_COMM_(fn, c) \
    static struct fk_site site = {.name = #fn}; \
    struct fk_comm *knob_comm = (c); \
    int res = fk_enter(&site, valid(knob_comm) ? &knob_comm->abort : NULL, ncclRemoteError); \
    if (res) \
        fail(res, "%s: made to fail with %d", #fn, res)
#define ENTER(fn) ENTER_COMM(fn, NULL)
#define LEAVE_(fn, ...) \
    fk_log(#fn, res, __VA_ARGS__); \
    return (ncclResult_t)res
#define STEP(x) \
    do { \
        if (!res) \
            res = (int)(x); \
    } while (0)
#define P(x) ((const void *)(x))
#define CHECK_COMM(fn, c) (valid((struct fk_comm *)(c)) ? 0 : fail(ncclInvalidArgument, "%s : comm argument is %s", #fn, \
                                                                   (c) ? "corrupted" : "NULL"))

PUBLIC ncclResult_t ncclGetVersion(int *v)
{
    ENTER(ncclGetVersion);
    STEP(v ? 0 : ncclInvalidArgument);
    if (!res)
        *v = version();
    LEAVE(ncclGetVersion, "%d", v ? *v : -1);
}

PUBLIC ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    ENTER(ncclGetUniqueId);
    STEP(id ? 0 : ncclInvalidArgument);
    char name[33] = "";
    if (!res) {
        random_name(name);
        res = start_root(name);
    }
    if (!res)
        id_make(id, name);
    LEAVE(ncclGetUniqueId, "id=%.8s", name);
}

static ncclResult_t have_devices(void)
{
    pthread_once(&core_once, open_core);
    if (!core)
        return fail(ncclUnhandledCudaError, "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'");
    return cuda_fail(core->init());
}

static ncclResult_t init_rank(ncclComm_t *out, int n, const ncclUniqueId *id, int rank, const void *config)
{
    bool blocking = true;
    ncclResult_t r = have_devices();
    if (r)
        return r;
    if (!out || !id)
        return fail(ncclInvalidArgument, "CommInitRank : %s argument is NULL", out ? "commId" : "comm");
    *out = NULL;
    r = read_config(config, &blocking);
    if (r)
        return r;
    if (n < 1 || rank < 0 || rank >= n)
        return fail(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, n);
    struct job *j = calloc(1, sizeof *j);
    if (!id_name(id, j->name)) {
        free(j);
        return fail(ncclInvalidArgument, "the unique id is damaged");
    }
    j->rank = j->key = rank;
    j->nranks = n;
    j->out = out;
    j->comm = *out = comm_new(core->bind(), blocking);
    return add_job(j);
}

PUBLIC ncclResult_t ncclCommInitRank(ncclComm_t *out, int n, ncclUniqueId id, int rank)
{
    ENTER(ncclCommInitRank);
    STEP(init_rank(out, n, &id, rank, NULL));
    note(res);
    LEAVE(ncclCommInitRank, "%d, %.8s, %d", n, id.internal + 8, rank);
}

#ifdef FK_INIT_MULTI
PUBLIC ncclResult_t ncclCommInitRankMulti(ncclComm_t *out, int n, ncclUniqueId id, int rank, int virtual_id)
{
    ENTER(ncclCommInitRankMulti);
    STEP(init_rank(out, n, &id, rank, NULL));
    note(res);
    LEAVE(ncclCommInitRankMulti, "%d, %.8s, %d, virtual=%d", n, id.internal + 8, rank, virtual_id);
}
#endif

PUBLIC ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    ENTER(ncclCommInitRankConfig);
    struct fk_config c = config_head(config);
    STEP(init_rank(out, n, &id, rank, config));
    note(res);
    LEAVE(ncclCommInitRankConfig, "%d, %.8s, %d, config={size=%zu version=%u blocking=%d}", n, id.internal + 8, rank,
          c.size, c.version, config ? c.blocking : 1);
}

PUBLIC ncclResult_t ncclCommInitRankScalable(ncclComm_t *out, int n, int rank, int nid, ncclUniqueId *ids, ncclConfig_t *config)
{
    ENTER(ncclCommInitRankScalable);
    STEP(nid < 1 ? fail(ncclInvalidArgument, "nId %d is not positive", nid) : init_rank(out, n, ids, rank, config));
    note(res);
    LEAVE(ncclCommInitRankScalable, "%d, %d, %d", n, rank, nid);
}

PUBLIC ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devs)
{
    ENTER(ncclCommInitAll);
    STEP(have_devices());
    STEP(comms && n > 0 ? 0 : fail(ncclInvalidArgument, "CommInitAll : invalid argument"));
    STEP(!devs && n > core->count() ? fail(ncclInvalidArgument, "CommInitAll : %d ranks, %d devices", n, core->count()) : 0);
    for (int i = 0; !res && devs && i < n; i++)
        for (int k = 0; k < n; k++)
            if (devs[i] < 0 || devs[i] >= core->count() || (k < i && devs[i] == devs[k]))
                res = fail(ncclInvalidUsage, "CommInitAll : device %d is invalid or given twice", devs[i]);
    if (!res) {
        ncclUniqueId id;
        char name[33];
        int before = core->peek_device();
        random_name(name);
        res = start_root(name);
        id_make(&id, name);
        ncclGroupStart();
        for (int i = 0; i < n; i++) {
            core->poke_device(devs ? devs[i] : i);
            note(init_rank(&comms[i], n, &id, i, NULL));
        }
        core->poke_device(before);
        STEP(ncclGroupEnd());
    }
    LEAVE(ncclCommInitAll, "%d", n);
}

static bool elsewhere(struct fk_comm *c)
{
    int device = core->peek_device();
    return (device < 0 ? 0 : device) != c->device;
}

/* A call that does nothing and says nothing, because it was made on another device. */
static bool ignored(struct fk_comm *c) { return FK_WRONG_DEVICE == FK_SILENT && valid(c) && elsewhere(c); }

/* Waits for the work of the communicator (and for its helpers). */
static void drain(struct fk_comm *c)
{
    pthread_mutex_lock(&c->mu);
    while (c->helpers || (c->pending && !c->abort) || c->running)
        pthread_cond_wait(&c->cv, &c->mu);
    pthread_mutex_unlock(&c->mu);
}

static ncclResult_t check_ready(struct fk_comm *c)
{
    int s = c->state;
    if (s == ncclInProgress)
        return fail(ncclInvalidArgument, "Attempt to use communicator before the previous operation returned ncclSuccess");
    return (ncclResult_t)(s == ncclRemoteError || c->abort ? ncclRemoteError : s);
}

PUBLIC ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    ENTER_COMM(ncclCommFinalize, c);
    STEP(CHECK_COMM(CommFinalize, c));
    STEP(check_ready(c));
    STEP(c->finalized ? fail(ncclInvalidArgument, "comm is finalized already") : 0);
    if (!res) {
        int before = core->peek_device();
        core->poke_device(c->device);
        c->finalized = true;
        drain(c);
        core->poke_device(before);
    }
    LEAVE(ncclCommFinalize, "%p", P(c));
}

PUBLIC ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    ENTER_COMM(ncclCommDestroy, c);
    if (!res && c && !ignored(c)) {
        STEP(CHECK_COMM(CommDestroy, c));
        if (!res) {
            int before = core->peek_device();
            core->poke_device(c->device);
            drain(c);
            comm_close(c);
            core->poke_device(before);
        }
    }
    LEAVE(ncclCommDestroy, "%p", P(c));
}

PUBLIC ncclResult_t ncclCommAbort(ncclComm_t c)
{
    ENTER(ncclCommAbort);
    if (!res && c && !ignored(c)) {
        STEP(CHECK_COMM(CommAbort, c));
        if (!res) {
            int before = core->peek_device();
            core->poke_device(c->device);
            comm_stop(c);
            pthread_mutex_lock(&c->mu);
            while (c->helpers || c->running)
                pthread_cond_wait(&c->cv, &c->mu);
            pthread_mutex_unlock(&c->mu);
            comm_close(c);
            core->poke_device(before);
        }
    }
    LEAVE(ncclCommAbort, "%p", P(c));
}

PUBLIC ncclResult_t ncclCommRevoke(ncclComm_t c, int flags)
{
    ENTER_COMM(ncclCommRevoke, c);
    STEP(CHECK_COMM(CommRevoke, c));
    STEP(flags ? fail(ncclInvalidArgument, "CommRevoke : invalid flags %d", flags) : check_ready(c));
    if (!res) {
        c->revoked = 1;
        comm_stop(c);
        drain(c);
    }
    LEAVE(ncclCommRevoke, "%p, %d", P(c), flags);
}

#ifdef FK_SUSPEND_WITHOUT_FLAGS
PUBLIC ncclResult_t ncclCommSuspend(ncclComm_t c)
{
    int flags = 0;
#else
PUBLIC ncclResult_t ncclCommSuspend(ncclComm_t c, int flags)
{
#endif
    ENTER_COMM(ncclCommSuspend, c);
    STEP(CHECK_COMM(CommSuspend, c));
    STEP(c->suspended || flags & ~1 ? fail(ncclInvalidUsage, "CommSuspend : suspended already or bad flags") : 0);
    if (!res) {
        drain(c);
        c->suspended = true;
    }
    LEAVE(ncclCommSuspend, "%p, %d", P(c), flags);
}

PUBLIC ncclResult_t ncclCommResume(ncclComm_t c)
{
    ENTER_COMM(ncclCommResume, c);
    STEP(CHECK_COMM(CommResume, c));
    STEP(c->suspended ? 0 : fail(ncclInvalidUsage, "CommResume : not suspended"));
    if (!res)
        c->suspended = false;
    LEAVE(ncclCommResume, "%p", P(c));
}

PUBLIC ncclResult_t ncclCommMemStats(ncclComm_t c, int stat, uint64_t *v)
{
    ENTER_COMM(ncclCommMemStats, c);
    STEP(CHECK_COMM(CommMemStats, c));
    STEP(v ? 0 : ncclInvalidArgument);
    if (!res)
        *v = 0;
    LEAVE(ncclCommMemStats, "%p, %d", P(c), stat);
}

/* A job that makes a child communicator out of a parent. */
static ncclResult_t child_job(struct fk_comm *parent, const char *what, unsigned turn, bool root, int rank, int n, int color,
                              int key, ncclComm_t *out, const void *config)
{
    bool blocking = parent->blocking, asked;
    ncclResult_t r = read_config(config, &asked);
    if (r)
        return r;
    if (config)
        blocking = asked;
    struct job *j = calloc(1, sizeof *j);
    derive_name(j->name, parent->secret, what, turn, 0);
    if (root && (r = start_root(j->name))) {
        free(j);
        return r;
    }
    j->rank = rank;
    j->nranks = n;
    j->color = color;
    j->key = key;
    j->retry = true;
    j->out = out;
    j->comm = comm_new(parent->device, blocking);
    if (!blocking && !group.depth) {
        /* As NCCL: the call succeeds at once, and the child is there when the parent is no longer in progress. */
        *out = NULL;
        j->parent = parent;
        pthread_mutex_lock(&parent->mu);
        parent->state = ncclInProgress;
        parent->helpers++;
        pthread_mutex_unlock(&parent->mu);
        atomic_fetch_add(&parent->refs, 1);
        r = add_job(j);
        return r == ncclInProgress ? ncclSuccess : r;
    }
    *out = color == NO_COLOR ? NULL : j->comm;
    return add_job(j);
}

PUBLIC ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    ENTER_COMM(ncclCommSplit, c);
    STEP(CHECK_COMM(CommSplit, c));
    STEP(out ? 0 : fail(ncclInvalidArgument, "CommSplit : newcomm is NULL"));
    STEP(color < NO_COLOR ? fail(ncclInvalidArgument, "CommSplit : color %d", color) : 0);
    STEP(c->revoked ? fail(ncclInvalidUsage, "CommSplit : comm is revoked") : check_ready(c));
    STEP(child_job(c, "split", c->splits++, c->rank == 0, c->rank, c->nranks, color, key, out, config));
    note(res);
    LEAVE(ncclCommSplit, "%p, %d, %d", P(c), color, key);
}

PUBLIC ncclResult_t ncclCommShrink(ncclComm_t c, int *excl, int n, ncclComm_t *out, ncclConfig_t *config, int flags)
{
    ENTER_COMM(ncclCommShrink, c);
    STEP(CHECK_COMM(CommShrink, c));
    STEP(out && excl && n > 0 && n < c->nranks ? 0 : fail(ncclInvalidArgument, "CommShrink : invalid argument"));
    STEP(flags == SHRINK_ABORT || c->revoked ? 0 : check_ready(c));
    if (!res) {
        int mine = -1, left = 0;
        for (int r = 0; r < c->nranks && !res; r++) {
            bool gone = false;
            for (int i = 0; i < n; i++)
                gone |= excl[i] == r;
            if (r == c->rank) {
                mine = left;
                if (gone)
                    res = fail(ncclInvalidUsage, "CommShrink : an excluded rank must not call");
            }
            left += !gone;
        }
        if (!res && flags & SHRINK_ABORT) {
            comm_stop(c);
            pthread_mutex_lock(&c->mu);
            while (c->running)
                pthread_cond_wait(&c->cv, &c->mu);
            pthread_mutex_unlock(&c->mu);
        }
        STEP(child_job(c, "shrink", c->shrinks++, mine == 0, mine, left, 0, mine, out, config));
    }
    note(res);
    LEAVE(ncclCommShrink, "%p, %d, %d", P(c), n, flags);
}

PUBLIC ncclResult_t ncclCommGetUniqueId(ncclComm_t c, ncclUniqueId *id)
{
    ENTER_COMM(ncclCommGetUniqueId, c);
    char name[33] = "";
    STEP(CHECK_COMM(CommGetUniqueId, c));
    STEP(id ? 0 : ncclInvalidArgument);
    STEP(check_ready(c));
    if (!res) {
        derive_name(name, c->secret, "grow", c->grows, 0);
        res = start_root(name);
        id_make(id, name);
    }
    LEAVE(ncclCommGetUniqueId, "%p, id=%.8s", P(c), name);
}

PUBLIC ncclResult_t ncclCommGrow(ncclComm_t c, int n, const ncclUniqueId *id, int rank, ncclComm_t *out, ncclConfig_t *config)
{
    ENTER_COMM(ncclCommGrow, c);
    if (!c)
        STEP(init_rank(out, n, id, rank, config));
    else {
        STEP(CHECK_COMM(CommGrow, c));
        STEP(out && n > c->nranks ? 0 : fail(ncclInvalidArgument, "CommGrow : %d ranks", n));
        STEP(check_ready(c));
        STEP(child_job(c, "grow", c->grows++, false, c->rank, n, 0, c->rank, out, config));
    }
    note(res);
    LEAVE(ncclCommGrow, "%p, %d, %d", P(c), n, rank);
}

PUBLIC const char *ncclGetErrorString(ncclResult_t r)
{
    switch ((int)r) {
    case 0: return "no error";
    case 1: return "unhandled " FK_UNHANDLED_TEXT " error (run with NCCL_DEBUG=INFO for details)";
    case 2: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case 3: return "internal error - please report this issue to the NCCL developers";
    case 4: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case 5: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case 6: return "remote process exited or there was a network error";
    case 7: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}

PUBLIC const char *ncclGetLastError(ncclComm_t c)
{
    (void)c;
    return last_error;
}

PUBLIC void ncclResetDebugInit(void) {}

PUBLIC ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out)
{
    ENTER_COMM(ncclCommGetAsyncError, c);
    STEP(CHECK_COMM(ncclCommGetAsyncError, c));
    STEP(out ? 0 : ncclInvalidArgument);
    if (!res) {
        const char *e = getenv("FAKE_ASYNC_ERROR");
        *out = (ncclResult_t)(c->state ? c->state : e ? atoi(e) : 0);
    }
    LEAVE(ncclCommGetAsyncError, "%p, %d", P(c), out && !res ? (int)*out : -1);
}

#define GETTER(fn, what, value) \
    PUBLIC ncclResult_t fn(const ncclComm_t c, int *v) \
    { \
        ENTER_COMM(fn, c); \
        STEP(CHECK_COMM(what, c)); \
        STEP(v ? 0 : fail(ncclInvalidArgument, #what " : argument is NULL")); \
        STEP(check_ready(c) == ncclInvalidArgument ? ncclInvalidArgument : 0); \
        if (!res) \
            *v = value; \
        LEAVE(fn, "%p", P(c)); \
    }
GETTER(ncclCommCount, CommCount, c->nranks)
GETTER(ncclCommCuDevice, CommCuDevice, c->device)
GETTER(ncclCommUserRank, CommUserRank, c->rank)

/* ---- user operators ---- */

#define OP_BASE(c) (N_OPS + ((c)->index & 0xffff) * 4096)

PUBLIC ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t dt, ncclScalarResidence_t where,
                                             ncclComm_t c)
{
    ENTER_COMM(ncclRedOpCreatePreMulSum, c);
    int type = type_of((int)dt);
    STEP(CHECK_COMM(ncclRedOpCreatePreMulSum, c));
    STEP(check_ready(c));
    STEP(op && scalar && type >= 0 && (unsigned)where <= 1 ? 0
         : fail(ncclInvalidArgument, "PreMulSum : invalid argument"));
    struct redop o = {.used = true, .dt = type, .on_device = where == ncclScalarDevice};
    if (!res && o.on_device) {
        struct fk_memory m;
        if (core->lookup(scalar, &m) && m.left >= sizes[type])
            o.view = m.view;
        else
            res = cuda_fail(cudaErrorIllegalAddress);
    } else if (!res)
        memcpy(o.scalar, scalar, sizes[type]);
    if (!res) {
        int i = 0;
        pthread_mutex_lock(&c->mu);
        while (i < c->n_redops && c->redops[i].used)
            i++;
        if (i == c->n_redops)
            c->redops = realloc(c->redops, (size_t)++c->n_redops * sizeof *c->redops);
        c->redops[i] = o;
        pthread_mutex_unlock(&c->mu);
        *op = (ncclRedOp_t)(OP_BASE(c) + i);
    }
    LEAVE(ncclRedOpCreatePreMulSum, "%d, %d, %d, %p", op && !res ? (int)*op : -1, (int)dt, (int)where, P(c));
}

PUBLIC ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t c)
{
    ENTER_COMM(ncclRedOpDestroy, c);
    STEP(CHECK_COMM(ncclRedOpDestroy, c));
    STEP((int)op < N_OPS ? fail(ncclInvalidArgument, "ncclRedOpDestroy : operator %d is a NCCL builtin", (int)op) : 0);
    if (!res) {
        int i = (int)op - OP_BASE(c);
        pthread_mutex_lock(&c->mu);
        if (i < 0 || i >= c->n_redops || !c->redops[i].used)
            res = fail(ncclInvalidArgument, "ncclRedOpDestroy : operator unknown to this communicator");
        else
            c->redops[i].used = false;
        pthread_mutex_unlock(&c->mu);
    }
    LEAVE(ncclRedOpDestroy, "%d, %p", (int)op, P(c));
}

/* ---- collectives ---- */

#ifndef FAKE_BARE
/* The view of a buffer; the error of the real one's kernel if the device can't touch it. */
static ncclResult_t view(const void *p, size_t bytes, char **out)
{
    struct fk_memory m;
    if (!core->lookup(p, &m) || m.left < bytes)
        return cuda_fail(cudaErrorIllegalAddress);
    *out = m.view;
    return ncclSuccess;
}

static ncclResult_t submit(enum kind kind, const void *s, void *r, size_t count, ncclDataType_t abi_dt, int redop, int peer,
                           ncclComm_t c, cudaStream_t stream)
{
    int dt = type_of((int)abi_dt);
    if (c->revoked)
        return fail(ncclInvalidUsage, "the communicator is revoked");
    if (c->suspended)
        return fail(ncclInvalidUsage, "the communicator is suspended");
    if (c->finalized)
        return fail(ncclInvalidUsage, "the communicator is finalized");
    ncclResult_t res = check_ready(c);
    if (res)
        return res;
    if (dt < 0)
        return fail(ncclInvalidArgument, "invalid type %d", (int)abi_dt);
    struct op o = {.kind = kind, .count = count, .dt = dt, .redop = redop, .peer = peer};
    bool reduces = kind <= REDUCESCATTER;
    bool rooted = kind == REDUCE || kind == BROADCAST || kind == GATHER || kind == SCATTER;
    if ((rooted || kind >= SEND) && (peer < 0 || peer >= c->nranks))
        return fail(ncclInvalidArgument, "invalid %s %d (%s should be in the 0..%d range)", rooted ? "root" : "peer", peer,
                    rooted ? "root" : "peer", c->nranks - 1);
    if (reduces)
        redop = o.redop = FK_REDOP(redop);
    if (reduces && redop < 0)
        return fail(ncclInvalidArgument, "invalid reduction operation %d", redop);
    if (reduces && redop >= N_OPS) {
        int i = redop - OP_BASE(c);
        pthread_mutex_lock(&c->mu);
        if (i < 0 || i >= c->n_redops || !c->redops[i].used)
            res = fail(ncclInvalidArgument, "reduction operation %d unknown to this communicator", redop);
        else if (c->redops[i].dt != dt)
            res = fail(ncclInvalidArgument, "Data type supplied to user-created ncclRedOp_t does not match type given to reduction operation");
        else {
            o.scaled = true;
            o.redop = OP_SUM;
            memcpy(o.scalar, c->redops[i].scalar, 8);
            o.scalar_view = c->redops[i].on_device ? c->redops[i].view : NULL;
        }
        pthread_mutex_unlock(&c->mu);
        if (res)
            return res;
    }
    if (!count && kind < SEND)
        return ncclSuccess;
    size_t bytes, n = (size_t)c->nranks, all;
    if (__builtin_mul_overflow(count, sizes[dt], &bytes) || __builtin_mul_overflow(bytes, n, &all))
        return cuda_fail(cudaErrorIllegalAddress);
    bool root = c->rank == peer;
    size_t in = kind == RECV || (kind == BROADCAST && !root) || (kind == SCATTER && !root) ? 0
              : kind == REDUCESCATTER || kind == ALLTOALL || kind == SCATTER ? all : bytes;
    size_t out = kind == SEND || (kind == REDUCE && !root) || (kind == GATHER && !root) ? 0
               : kind == ALLGATHER || kind == ALLTOALL || kind == GATHER ? all : bytes;
    if (in)
        res = view(s, in, &o.send);
    if (out && !res)
        res = view(r, out, &o.recv);
    if (res)
        return res;
    o.out = out;
    struct item item = {c, stream, o};
    if (!group.depth)
        return launch_now_or_later(&item, 1);
    if (group.n == group.cap) {
        group.cap = group.cap ? 2 * group.cap : 16;
        group.items = realloc(group.items, (size_t)group.cap * sizeof *group.items);
    }
    group.items[group.n++] = item;
    return ncclSuccess;
}

/* The flavour's quirks that end a call before it reaches submit(); false: it goes on. */
static bool quirk(struct fk_comm *c, enum kind kind, ncclDataType_t dt, int *res)
{
    int type = type_of((int)dt), what = kind >= SEND ? SEND : (int)kind;
    if (FK_WRONG_DEVICE && elsewhere(c)) {
        if (FK_WRONG_DEVICE != FK_SILENT)
            *res = fail((ncclResult_t)FK_WRONG_DEVICE, "the current device is not the communicator's (%d)", c->device);
        return true;
    }
    if (FK_PAIRS_ONLY && what == SEND) {
        if (c->nranks > 2) {
            *res = fail(ncclInvalidUsage, "send and receive need a communicator of two ranks, this one has %d", c->nranks);
            return true;
        }
        if (group.depth) {
            fprintf(stderr, "stand-in: a send or receive inside a group crashes the real library\n");
            abort();
        }
    }
    if (FK_NARROW && (type == T_INT64 || type == T_UINT64 || type == T_DOUBLE) && kind != BROADCAST && kind != ALLGATHER) {
        *res = fail(ncclInvalidArgument, "64-bit types are supported by Broadcast and AllGather only");
        return true;
    }
    if (FK_ONE_KIND && group.depth) {
        if (group.kind && group.kind != what) {
            *res = fail(ncclInvalidUsage, "a group aggregates one kind of operation only");
            return true;
        }
        group.kind = what;
    }
    return FK_UNSET_GATHER && (kind == GATHER || kind == SCATTER);
}

#define COLL(fn, params, kind, s, r, n, dt, redop, peer, ...) \
    PUBLIC ncclResult_t fn params \
    { \
        ENTER_COMM(fn, c); \
        if (!res && !valid(c)) /* does not mark the group */ \
            res = CHECK_COMM(fn, c); \
        else { \
            if (!res && !quirk(c, kind, dt, &res)) \
                STEP(submit(kind, s, r, n, dt, (int)(redop), peer, c, st)); \
            note((ncclResult_t)res); \
        } \
        LEAVE(fn, __VA_ARGS__); \
    }
#else
#define COLL(fn, params, kind, s, r, n, dt, redop, peer, ...) \
    __attribute__((optimize("omit-frame-pointer"))) PUBLIC ncclResult_t fn params { return ncclSuccess; }
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif

#ifndef FAKE_BARE
/* An exchange in which every pair has its own amount: all sends and receives as one group. */
struct part { const void *s; size_t sn; void *r; size_t rn; };

MAYBE static ncclResult_t exchange(struct fk_comm *c, const struct part *parts, ncclDataType_t dt, cudaStream_t st)
{
    group.depth++;
    for (int i = 0; i < c->nranks; i++) {
        note(submit(SEND, parts[i].s, NULL, parts[i].sn, dt, 0, i, c, st));
        note(submit(RECV, NULL, parts[i].r, parts[i].rn, dt, 0, i, c, st));
    }
    return group_end(false);
}

/* `fill` is a statement that sets part `p` of peer `i`; elements have `size` bytes. */
#define COLL_V(fn, params, dt, ok, fill, ...) \
    PUBLIC ncclResult_t fn params \
    { \
        ENTER_COMM(fn, c); \
        if (!res && !valid(c)) \
            res = CHECK_COMM(fn, c); \
        else { \
            int type = type_of((int)(dt)); \
            STEP(ok ? 0 : fail(ncclInvalidArgument, "%s : invalid argument", #fn)); \
            STEP(type < 0 ? fail(ncclInvalidArgument, "invalid type %d", (int)(dt)) : 0); \
            if (!res && !quirk(c, ALLTOALL, dt, &res)) { \
                size_t size = sizes[type]; \
                struct part *parts = calloc((size_t)c->nranks, sizeof *parts); \
                for (int i = 0; i < c->nranks; i++) { \
                    struct part *p = &parts[i]; \
                    fill; \
                    (void)size; \
                } \
                res = (int)exchange(c, parts, dt, st); \
                free(parts); \
            } \
            note((ncclResult_t)res); \
        } \
        LEAVE(fn, __VA_ARGS__); \
    }
#else
#define COLL_V(fn, params, dt, ok, fill, ...) \
    __attribute__((optimize("omit-frame-pointer"))) PUBLIC ncclResult_t fn params { return ncclSuccess; }
#endif

#define ARGS const void *s, void *r, size_t n, ncclDataType_t dt
#define TAIL ncclComm_t c, cudaStream_t st
#define CFG , const ncclCollConfig_t *cfg
#define USED_CFG (void)cfg,
#define F_RED "%p, %p, %zu, %d, op=%d, comm=%p, stream=%p", s, P(r), n, (int)dt, (int)op, P(c), P(st)
#define F_ROOTED "%p, %p, %zu, %d, root=%d, comm=%p, stream=%p", s, P(r), n, (int)dt, root, P(c), P(st)
#define F_PLAIN "%p, %p, %zu, %d, comm=%p, stream=%p", s, P(r), n, (int)dt, P(c), P(st)

COLL(ncclAllReduce, (ARGS, ncclRedOp_t op, TAIL), ALLREDUCE, s, r, n, dt, op, 0, F_RED)
COLL(ncclReduceScatter, (ARGS, ncclRedOp_t op, TAIL), REDUCESCATTER, s, r, n, dt, op, 0, F_RED)
COLL(ncclReduce, (ARGS, ncclRedOp_t op, int root, TAIL), REDUCE, s, r, n, dt, op, root,
     "%p, %p, %zu, %d, op=%d, root=%d, comm=%p, stream=%p", s, P(r), n, (int)dt, (int)op, root, P(c), P(st))
COLL(ncclBroadcast, (ARGS, int root, TAIL), BROADCAST, s, r, n, dt, 0, root, F_ROOTED)
COLL(ncclBcast, (void *r, size_t n, ncclDataType_t dt, int root, TAIL), BROADCAST, r, r, n, dt, 0, root,
     "%p, %zu, %d, root=%d, comm=%p, stream=%p", P(r), n, (int)dt, root, P(c), P(st))
COLL(ncclAllGather, (ARGS, TAIL), ALLGATHER, s, r, n, dt, 0, 0, F_PLAIN)
COLL(ncclAlltoAll, (ARGS, TAIL), ALLTOALL, s, r, n, dt, 0, 0, F_PLAIN)
#ifdef FAKE_FLAVOUR /* NCCL has none of these */
COLL(ncclAllToAll, (ARGS, TAIL), ALLTOALL, s, r, n, dt, 0, 0, F_PLAIN)
#define PAIRWISE \
    *p = (struct part){(const char *)s + sd[i] * size, sc[i], (char *)r + rd[i] * size, rc[i]}
#define VECTORS const size_t sc[], const size_t sd[], void *r, const size_t rc[], const size_t rd[]
#define F_V "%p, %p, %d, comm=%p, stream=%p", s, P(r), (int)dt, P(c), P(st)
COLL_V(ncclAllToAllv, (const void *s, VECTORS, ncclDataType_t dt, TAIL), dt, sc && sd && rc && rd, PAIRWISE, F_V)
COLL_V(ncclAllToAlld, (const void *s[], const size_t sc[], void *r[], const size_t rc[], ncclDataType_t dt, TAIL), dt,
       s && sc && r && rc, *p = ((struct part){s[i], sc[i], r[i], rc[i]}), "%p, %p, %d, comm=%p, stream=%p", P(s), P(r), (int)dt, P(c),
       P(st))
#ifdef FK_TYPED_ALLTOALL
/* Both sides say their own amount and type; only the same on both is supported here. */
COLL(ncclAlltoall, (const void *s, size_t n, ncclDataType_t dt, void *r, size_t rn, ncclDataType_t rdt, TAIL), ALLTOALL, s, r, n,
     (rn == n && rdt == dt ? dt : (ncclDataType_t)-1), 0, 0, "%p, %zu, %d, %p, %zu, %d, comm=%p, stream=%p", s, n, (int)dt, P(r), rn,
     (int)rdt, P(c), P(st))
COLL_V(ncclAlltoAllv, (void *s, size_t *sc, size_t *sd, ncclDataType_t dt, void *r, size_t *rc, size_t *rd, ncclDataType_t rdt, TAIL),
       (rdt == dt ? dt : (ncclDataType_t)-1), sc && sd && rc && rd, PAIRWISE, F_V)
#else
COLL_V(ncclAlltoAllv, (const void *s, VECTORS, ncclDataType_t dt, TAIL), dt, sc && sd && rc && rd, PAIRWISE, F_V)
#endif
#endif
COLL(ncclGather, (ARGS, int root, TAIL), GATHER, s, r, n, dt, 0, root, F_ROOTED)
COLL(ncclScatter, (ARGS, int root, TAIL), SCATTER, s, r, n, dt, 0, root, F_ROOTED)
COLL(ncclSend, (const void *s, size_t n, ncclDataType_t dt, int peer, TAIL), SEND, s, NULL, n, dt, 0, peer,
     "%p, %zu, %d, peer=%d, comm=%p, stream=%p", s, n, (int)dt, peer, P(c), P(st))
COLL(ncclRecv, (void *r, size_t n, ncclDataType_t dt, int peer, TAIL), RECV, NULL, r, n, dt, 0, peer,
     "%p, %zu, %d, peer=%d, comm=%p, stream=%p", P(r), n, (int)dt, peer, P(c), P(st))
COLL(ncclAllReduceConfig, (ARGS, ncclRedOp_t op, TAIL CFG), ALLREDUCE, (USED_CFG s), r, n, dt, op, 0, F_RED)
COLL(ncclReduceScatterConfig, (ARGS, ncclRedOp_t op, TAIL CFG), REDUCESCATTER, (USED_CFG s), r, n, dt, op, 0, F_RED)
COLL(ncclReduceConfig, (ARGS, ncclRedOp_t op, int root, TAIL CFG), REDUCE, (USED_CFG s), r, n, dt, op, root, F_RED)
COLL(ncclBroadcastConfig, (ARGS, int root, TAIL CFG), BROADCAST, (USED_CFG s), r, n, dt, 0, root, F_ROOTED)
COLL(ncclAllGatherConfig, (ARGS, TAIL CFG), ALLGATHER, (USED_CFG s), r, n, dt, 0, 0, F_PLAIN)
COLL(ncclAlltoAllConfig, (ARGS, TAIL CFG), ALLTOALL, (USED_CFG s), r, n, dt, 0, 0, F_PLAIN)
COLL(ncclGatherConfig, (ARGS, int root, TAIL CFG), GATHER, (USED_CFG s), r, n, dt, 0, root, F_ROOTED)
COLL(ncclScatterConfig, (ARGS, int root, TAIL CFG), SCATTER, (USED_CFG s), r, n, dt, 0, root, F_ROOTED)

PUBLIC ncclResult_t ncclGroupStart(void)
{
    ENTER(ncclGroupStart);
    if (!res)
        group.depth++;
    LEAVE(ncclGroupStart, "%s", "");
}

PUBLIC ncclResult_t ncclGroupEnd(void)
{
    ENTER(ncclGroupEnd);
    if (res)
        note((ncclResult_t)res);
    int r = group_end(false);
    STEP(r);
    LEAVE(ncclGroupEnd, "%s", "");
}

PUBLIC ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    ENTER(ncclGroupSimulateEnd);
    STEP(info && info->magic != NCCL_SIM_MAGIC ? fail(ncclInvalidArgument, "ncclSimInfo_t argument not initialized") : 0);
    note((ncclResult_t)res);
    int r = group_end(true);
    STEP(r);
    if (!res && info && info->size >= sizeof *info)
        info->estimatedTime = 1.0f;
    LEAVE(ncclGroupSimulateEnd, "%p", P(info));
}

/* ---- memory ---- */

PUBLIC ncclResult_t ncclMemAlloc(void **p, size_t n)
{
    ENTER(ncclMemAlloc);
    STEP(p && n ? 0 : fail(ncclInvalidArgument, "ncclMemAlloc : invalid argument"));
    STEP(have_devices());
    STEP(cuda_fail(core->mem_alloc(p, n, cudaMemoryTypeDevice, true)));
    LEAVE(ncclMemAlloc, "%p, %zu", p ? *p : NULL, n);
}

PUBLIC ncclResult_t ncclMemFree(void *p)
{
    ENTER(ncclMemFree);
    STEP(have_devices());
    STEP(cuda_fail(core->mem_free(p, cudaMemoryTypeDevice, true)));
    LEAVE(ncclMemFree, "%p", p);
}

PUBLIC ncclResult_t ncclCommRegister(const ncclComm_t c, void *p, size_t n, void **handle)
{
    ENTER_COMM(ncclCommRegister, c);
    struct fk_memory m;
    STEP(CHECK_COMM(CommRegister, c));
    STEP(p && n && handle ? 0 : fail(ncclInvalidArgument, "CommRegister : invalid argument"));
    STEP(core->lookup(p, &m) && m.left >= n ? 0 : (int)cuda_fail(cudaErrorInvalidValue));
    if (!res)
        *handle = p;
    LEAVE(ncclCommRegister, "%p, %p, %zu", P(c), p, n);
}

PUBLIC ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
    ENTER_COMM(ncclCommDeregister, c);
    STEP(CHECK_COMM(CommDeregister, c));
    LEAVE(ncclCommDeregister, "%p, %p", P(c), handle);
}

PUBLIC ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *p, size_t n, ncclWindow_t *out, int flags)
{
    ENTER_COMM(ncclCommWindowRegister, c);
    struct fk_memory m;
    STEP(CHECK_COMM(CommWindowRegister, c));
    STEP(p && n && out ? check_ready(c) : fail(ncclInvalidArgument, "CommWindowRegister : invalid argument"));
    STEP(core->lookup(p, &m) && m.left >= n ? 0 : (int)cuda_fail(cudaErrorInvalidValue));
    if (!res) {
        struct fk_window *w = calloc(1, sizeof *w);
        w->ptr = p;
        w->n = n;
        pthread_mutex_lock(&c->mu);
        w->next = c->windows;
        *out = c->windows = w;
        pthread_mutex_unlock(&c->mu);
    }
    LEAVE(ncclCommWindowRegister, "%p, %p, %zu, %d", P(c), p, n, flags);
}

/* The window's place in the list, or NULL. */
static struct fk_window **find_window(struct fk_comm *c, struct fk_window *w)
{
    struct fk_window **p = &c->windows;
    while (*p && *p != w)
        p = &(*p)->next;
    return *p ? p : NULL;
}

PUBLIC ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t w)
{
    ENTER_COMM(ncclCommWindowDeregister, c);
    STEP(CHECK_COMM(CommWindowDeregister, c));
    if (!res && w) {
        pthread_mutex_lock(&c->mu);
        struct fk_window **p = find_window(c, w);
        if (p)
            *p = w->next;
        pthread_mutex_unlock(&c->mu);
        if (p)
            free(w);
        else
            res = fail(ncclInvalidArgument, "CommWindowDeregister : unknown window");
    }
    LEAVE(ncclCommWindowDeregister, "%p, %p", P(c), P(w));
}

PUBLIC ncclResult_t ncclWinGetUserPtr(ncclComm_t c, ncclWindow_t w, void **out)
{
    ENTER_COMM(ncclWinGetUserPtr, c);
    STEP(CHECK_COMM(WinGetUserPtr, c));
    if (!res) {
        pthread_mutex_lock(&c->mu);
        if (out && w && find_window(c, w))
            *out = w->ptr;
        else
            res = fail(ncclInvalidArgument, "WinGetUserPtr : unknown window");
        pthread_mutex_unlock(&c->mu);
    }
    LEAVE(ncclWinGetUserPtr, "%p, %p", P(c), P(w));
}

/* One-sided calls exist, but are refused. */
static int refused(void) { return (int)fail(ncclInvalidUsage, "one-sided operations are not part of this stand-in"); }

PUBLIC ncclResult_t ncclPutSignal(const void *s, size_t n, ncclDataType_t dt, int peer, ncclWindow_t w, size_t off, int sig, int ctx,
                                  unsigned flags, ncclComm_t c, cudaStream_t st)
{
    ENTER_COMM(ncclPutSignal, c);
    STEP(refused());
    LEAVE(ncclPutSignal, "%p, %zu, %d, peer=%d, %p, %zu, %d, %d, %u, comm=%p, stream=%p", s, n, (int)dt, peer, P(w), off, sig, ctx,
          flags, P(c), P(st));
}

PUBLIC ncclResult_t ncclSignal(int peer, int sig, int ctx, unsigned flags, ncclComm_t c, cudaStream_t st)
{
    ENTER_COMM(ncclSignal, c);
    STEP(refused());
    LEAVE(ncclSignal, "peer=%d, %d, %d, %u, comm=%p, stream=%p", peer, sig, ctx, flags, P(c), P(st));
}

PUBLIC ncclResult_t ncclWaitSignal(int n, ncclWaitSignalDesc_t *d, ncclComm_t c, cudaStream_t st)
{
    ENTER_COMM(ncclWaitSignal, c);
    STEP(refused());
    LEAVE(ncclWaitSignal, "%d, %p, comm=%p, stream=%p", n, P(d), P(c), P(st));
}

PUBLIC ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config)
{
    ENTER(ncclSetEncryption);
    LEAVE(ncclSetEncryption, "%p", P(config));
}

#ifdef FK_ALIASES
#define ALIAS(name) __asm__(".globl nccl" #name "\n.set nccl" #name ", tccl" #name);
FK_ALIASES(ALIAS)
#endif

/* A mark for tests that ask whose file was opened. */
#ifdef FAKE_VENDOR
__attribute__((visibility("default"))) const char *fake_vendor_name(void);
const char *fake_vendor_name(void) { return FAKE_VENDOR; }
#endif
