/* Stand-in of the CUDA driver (libcuda.so.1); with only its fake_* functions exported it is libfakemachine.so, the machine
 * of the other vendors. It holds the whole state of the fake machine: devices, memory, streams,
 * events, graphs, and one current device per thread. The runtime and NCCL stand-ins reach it through core.h. */
#define _GNU_SOURCE
#include "core.h"
#include "knobs.h"
#include <signal.h>
#include <sys/mman.h>

#define MAX_DEVICES 64
#define PUBLIC __attribute__((visibility("default")))

static _Thread_local int t_device = -1;
static _Thread_local int t_capture_mode = cudaStreamCaptureModeGlobal;
static _Thread_local int t_in_host_func;
static _Thread_local const struct fk_stream *t_stream; /* on a stream's own thread */

static pthread_mutex_t G = PTHREAD_MUTEX_INITIALIZER; /* everything but the queues */
static atomic_int inited;
static int n_devices;
static int physical[MAX_DEVICES]; /* CUDA_VISIBLE_DEVICES (numbers only) renames devices */
static bool exit_check;
static atomic_bool dead;

/* ---- call sites, end of life ---- */

static pthread_mutex_t sites_mu = PTHREAD_MUTEX_INITIALIZER;
static struct fk_site *sites;

static void fk_register_site(struct fk_site *s)
{
    pthread_mutex_lock(&sites_mu);
    if (!s->known) {
        s->next = sites;
        sites = s;
        atomic_store_explicit(&s->known, 1, memory_order_release);
    }
    pthread_mutex_unlock(&sites_mu);
}

static int fk_log_device(void) { return t_device; }

static void fk_check_alive(const char *name)
{
    if (dead && exit_check) {
        fprintf(stderr, "stand-in driver: %s was called after the driver was torn down\n", name);
        abort();
    }
}

/* At exit, and as an exit handler registered by the first use: like the real driver it is gone before whatever was
 * registered earlier, and before the destructors of libraries. */
__attribute__((destructor)) static void driver_gone(void)
{
    const char *e = getenv("FAKE_EXIT_CHECK");
    exit_check = e && *e == '1';
    dead = true;
}

PUBLIC void fake_set_current_device(int device) { t_device = device; }
PUBLIC void fake_unbind_thread(void) { t_device = -1; }

PUBLIC long fake_call_count(const char *symbol)
{
    long n = 0;
    pthread_mutex_lock(&sites_mu);
    for (struct fk_site *s = sites; s; s = s->next)
        if (!strcmp(s->name, symbol))
            n += s->count;
    pthread_mutex_unlock(&sites_mu);
    return n;
}

/* ---- devices ---- */

struct fk_ctx { int device; };
static struct fk_ctx contexts[MAX_DEVICES];
static unsigned char peer_on[MAX_DEVICES][MAX_DEVICES];

static int core_init(void)
{
    pthread_mutex_lock(&G);
    if (!inited) {
        const char *e = getenv("FAKE_DEVICES");
        n_devices = e && *e ? atoi(e) : 4;
        if (n_devices < 0)
            n_devices = 0;
        if (n_devices > MAX_DEVICES)
            n_devices = MAX_DEVICES;
        for (int i = 0; i < MAX_DEVICES; i++)
            contexts[i].device = physical[i] = i;
        e = getenv("CUDA_VISIBLE_DEVICES");
        if (e) {
            int n = 0, all = n_devices;
            for (char *end; *e && n < all; e = *end == ',' ? end + 1 : end) {
                long d = strtol(e, &end, 10);
                if (end == e || d < 0 || d >= all)
                    break;
                physical[n++] = (int)d;
                if (*end != ',')
                    break;
            }
            n_devices = n;
        }
        inited = 1;
        e = getenv("FAKE_EXIT_CHECK");
        if (e && *e == '1')
            atexit(driver_gone);
    }
    pthread_mutex_unlock(&G);
    return n_devices ? cudaSuccess : cudaErrorNoDevice;
}

static int core_physical(int dev) { return physical[dev]; }
static int core_count(void) { return n_devices; }
static int core_peek_device(void) { return t_device; }
static void core_poke_device(int d) { t_device = d; }
static int core_in_host_func(void) { return t_in_host_func; }

static int core_bind(void)
{
    if (t_device < 0)
        t_device = 0;
    return t_device;
}

static void core_pci_bus_id(char *out, int len, int dev) { snprintf(out, (size_t)len, "%08X:%02X:00.0", 0, 0x10 + physical[dev]); }

static int core_attribute(int *v, int attr, int dev)
{
    switch (attr) {
    case 1: *v = 1024; break;                       /* threads per block */
    case 10: *v = 32; break;                        /* warp size */
    case 16: *v = 132; break;                       /* multiprocessors */
    case 33: *v = 0x10 + physical[dev]; break;                /* PCI bus */
    case 34: case 50: *v = 0; break;                /* PCI device, domain */
    case 41: case 83: case 89: *v = 1; break;       /* unified addressing, managed memory */
    case 75: *v = 9; break;                         /* compute capability */
    case 76: *v = 0; break;
    case 92: case 93: case 94: case 122: *v = 1; break; /* stream memory operations */
    default: *v = 0;
    }
    return attr > 0 && attr < 200 ? cudaSuccess : cudaErrorInvalidValue;
}

static int core_peer_enable(int peer)
{
    int d = core_bind();
    if (peer < 0 || peer >= n_devices || peer == d)
        return cudaErrorInvalidDevice;
    pthread_mutex_lock(&G);
    int was = peer_on[d][peer];
    peer_on[d][peer] = 1;
    pthread_mutex_unlock(&G);
    return was ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
}

static const struct { int code; const char *name, *text; } errors[] = {
    {0, "Success", "no error"},
    {1, "InvalidValue", "invalid argument"},
    {2, "MemoryAllocation", "out of memory"},
    {3, "InitializationError", "initialization error"},
    {4, "CudartUnloading", "driver shutting down"},
    {21, "InvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {35, "InsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {100, "NoDevice", "no CUDA-capable device is detected"},
    {101, "InvalidDevice", "invalid device ordinal"},
    {201, "DeviceUninitialized", "invalid device context"},
    {400, "InvalidResourceHandle", "invalid resource handle"},
    {401, "IllegalState", "the operation cannot be performed in the present state"},
    {600, "NotReady", "device not ready"},
    {700, "IllegalAddress", "an illegal memory access was encountered"},
    {704, "PeerAccessAlreadyEnabled", "peer access is already enabled"},
    {712, "HostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "HostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {800, "NotPermitted", "operation not permitted"},
    {900, "StreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "StreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {902, "StreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {903, "StreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {904, "StreamCaptureUnjoined", "capturing stream has unjoined work"},
    {905, "StreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {906, "StreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "StreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "Unknown", "unknown error"},
};

static const char *core_error_string(int code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return errors[i].text;
    return "unrecognized error code";
}

static const char *core_error_name(int code)
{
    static char names[sizeof errors / sizeof *errors][64];
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            if (!code)
                return "cudaSuccess";
            if (!names[i][0]) {
                char tmp[64];
                snprintf(tmp, sizeof tmp, "cudaError%s", errors[i].name);
                memcpy(names[i], tmp, sizeof tmp);
            }
            return names[i];
        }
    return "unrecognized error code";
}

/* ---- objects ---- */

struct entry {
    fk_task *task;
    uint64_t ticket;
    struct entry *next;
};

struct fk_stream {
    int device;
    unsigned flags;
    bool legacy, started, closing;
    atomic_int refs;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    struct entry *head, *tail;
    uint64_t queued, done;
    struct capture *capture;
    struct fk_stream *next;
};

/* What one record of an event stands for: an event may be recorded on a second stream before the first is there,
   and who waits for the first record is not released by the second. */
struct fk_mark {
    atomic_int refs;
    bool over;
    struct timespec time;
};

struct fk_event {
    int device;
    unsigned flags;
    atomic_int refs;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    struct fk_mark *mark; /* of the last record */
    struct capture *capture;
    struct fk_event *next;
};

struct fk_graph {
    fk_task **nodes;
    size_t n, cap;
    struct fk_graph *next;
};

struct capture {
    int mode;
    pthread_t owner;
    struct fk_stream *origin;
    struct fk_graph *graph;
    bool invalid, ended;
    struct capture *next; /* never freed: events may still name it */
};

struct block {
    char *base, *view;
    size_t size;
    int type, device;
    bool owned;
};

static struct fk_stream *streams;
static struct fk_event *events;
static struct fk_graph *graphs;
static struct capture *captures;
static struct fk_stream *legacy[MAX_DEVICES];
static struct block *blocks; /* sorted by base */
static size_t n_blocks, cap_blocks;
static size_t used_bytes[MAX_DEVICES];
static const size_t device_bytes = (size_t)16 << 30;

static void task_drop(fk_task *t)
{
    if (atomic_fetch_sub(&t->refs, 1) == 1)
        t->drop(t);
}

static void stream_unref(struct fk_stream *s)
{
    if (atomic_fetch_sub(&s->refs, 1) == 1) {
        pthread_mutex_destroy(&s->mu);
        pthread_cond_destroy(&s->cv);
        free(s);
    }
}

static void mark_unref(struct fk_mark *m)
{
    if (m && atomic_fetch_sub(&m->refs, 1) == 1)
        free(m);
}

static void event_unref(struct fk_event *e)
{
    if (atomic_fetch_sub(&e->refs, 1) == 1) {
        pthread_mutex_destroy(&e->mu);
        pthread_cond_destroy(&e->cv);
        mark_unref(e->mark);
        free(e);
    }
}

static void *worker(void *arg)
{
    struct fk_stream *s = arg;
    t_device = s->device;
    t_stream = s;
    pthread_mutex_lock(&s->mu);
    for (;;) {
        struct entry *e = s->head;
        if (!e) {
            if (s->closing)
                break;
            pthread_cond_wait(&s->cv, &s->mu);
            continue;
        }
        s->head = e->next;
        if (!s->head)
            s->tail = NULL;
        pthread_mutex_unlock(&s->mu);
        e->task->run(e->task, e->ticket);
        task_drop(e->task);
        free(e);
        pthread_mutex_lock(&s->mu);
        s->done++;
        pthread_cond_broadcast(&s->cv);
    }
    pthread_mutex_unlock(&s->mu);
    stream_unref(s);
    return NULL;
}

/* Puts a task into the queue; takes over one reference. Needs G. */
static int push_raw(struct fk_stream *s, fk_task *t)
{
    struct entry *e = calloc(1, sizeof *e);
    pthread_mutex_lock(&s->mu);
    e->task = t;
    e->ticket = t->prepare ? t->prepare(t) : 0;
    if (s->tail)
        s->tail->next = e;
    else
        s->head = e;
    s->tail = e;
    s->queued++;
    if (!s->started) {
        pthread_t id;
        pthread_attr_t a;
        pthread_attr_init(&a);
        pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize(&a, 512 << 10);
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        atomic_fetch_add(&s->refs, 1);
        if (pthread_create(&id, &a, worker, s)) {
            fprintf(stderr, "stand-in driver: cannot start a stream's thread\n");
            abort();
        }
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        s->started = true;
    }
    pthread_cond_broadcast(&s->cv);
    pthread_mutex_unlock(&s->mu);
    return cudaSuccess;
}

/* Waits for what was queued on `s` up to now. */
struct wait_task { fk_task t; struct fk_stream *s; uint64_t upto; };
static void wait_run(fk_task *t, uint64_t ticket)
{
    (void)ticket;
    struct wait_task *w = (void *)t;
    pthread_mutex_lock(&w->s->mu);
    while (w->s->done < w->upto)
        pthread_cond_wait(&w->s->cv, &w->s->mu);
    pthread_mutex_unlock(&w->s->mu);
}
static void wait_drop(fk_task *t)
{
    stream_unref(((struct wait_task *)t)->s);
    free(t);
}
static void push_wait(struct fk_stream *waiter, struct fk_stream *on)
{
    pthread_mutex_lock(&on->mu);
    uint64_t upto = on->queued;
    bool idle = on->done >= upto;
    pthread_mutex_unlock(&on->mu);
    if (idle || on == waiter)
        return;
    struct wait_task *w = calloc(1, sizeof *w);
    w->t = (fk_task){.run = wait_run, .drop = wait_drop, .refs = 1};
    w->s = on;
    w->upto = upto;
    atomic_fetch_add(&on->refs, 1);
    push_raw(waiter, &w->t);
}

static struct fk_stream *new_stream(int dev, unsigned flags, bool is_legacy)
{
    struct fk_stream *s = calloc(1, sizeof *s);
    s->device = dev;
    s->flags = flags;
    s->legacy = is_legacy;
    s->refs = 1;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->cv, NULL);
    s->next = streams;
    streams = s;
    return s;
}

/* The stream behind a handle, or NULL. Needs G. */
static struct fk_stream *find_stream(cudaStream_t h, int null_device)
{
    if ((uintptr_t)h <= 2) {
        int d = null_device >= 0 ? null_device : core_bind();
        if (!legacy[d])
            legacy[d] = new_stream(d, 0, true);
        return legacy[d];
    }
    for (struct fk_stream *s = streams; s; s = s->next)
        if (s == h)
            return s->legacy ? NULL : s;
    return NULL;
}

static struct fk_event *find_event(cudaEvent_t h)
{
    for (struct fk_event *e = events; e; e = e->next)
        if (e == h)
            return e;
    return NULL;
}

/* ---- stream capture ---- */

static void invalidate(struct capture *c) { c->invalid = true; }

/* For calls that are unsafe while something captures. Needs G. */
static int unsafe_call(void)
{
    int r = cudaSuccess;
    if (t_capture_mode == cudaStreamCaptureModeRelaxed)
        return r;
    for (struct capture *c = captures; c; c = c->next) {
        if (c->ended || c->mode == cudaStreamCaptureModeRelaxed)
            continue;
        bool mine = pthread_equal(c->owner, pthread_self());
        if (mine || (t_capture_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal)) {
            invalidate(c);
            r = cudaErrorStreamCaptureUnsupported;
        }
    }
    return r;
}

/* A legacy stream meets a capturing blocking stream of its device. Needs G. */
static struct capture *implicit_capture(const struct fk_stream *leg)
{
    for (struct fk_stream *s = streams; s; s = s->next)
        if (s->capture && s->device == leg->device && !(s->flags & cudaStreamNonBlocking))
            return s->capture;
    return NULL;
}

static void graph_add(struct fk_graph *g, fk_task *t)
{
    if (g->n == g->cap) {
        g->cap = g->cap ? 2 * g->cap : 16;
        g->nodes = realloc(g->nodes, g->cap * sizeof *g->nodes);
    }
    g->nodes[g->n++] = t;
}

/* Queues (or captures) a task; takes over one reference, also on failure. Needs G. */
static int push(struct fk_stream *s, fk_task *t)
{
    if (s->capture) {
        if (s->capture->invalid) {
            task_drop(t);
            return cudaErrorStreamCaptureInvalidated;
        }
        graph_add(s->capture->graph, t);
        return cudaSuccess;
    }
    if (s->legacy) {
        struct capture *c = implicit_capture(s);
        if (c) {
            invalidate(c);
            task_drop(t);
            return cudaErrorStreamCaptureImplicit;
        }
        for (struct fk_stream *o = streams; o; o = o->next)
            if (o != s && o->device == s->device && !(o->flags & cudaStreamNonBlocking))
                push_wait(s, o);
    } else if (!(s->flags & cudaStreamNonBlocking) && legacy[s->device]) {
        push_wait(s, legacy[s->device]);
    }
    return push_raw(s, t);
}

static int core_stream_push(cudaStream_t h, int null_device, fk_task *t)
{
    pthread_mutex_lock(&G);
    struct fk_stream *s = find_stream(h, null_device);
    int r = cudaErrorInvalidResourceHandle;
    if (s)
        r = push(s, t);
    pthread_mutex_unlock(&G);
    if (!s)
        task_drop(t);
    return r;
}

/* ---- results that the host does not see yet ---- */

/* What the host still sees of a piece of device memory, until it synchronises the stream that wrote there. Copies on
 * that stream, and everything on devices, see the truth. */
struct stale {
    const struct fk_stream *stream;
    int device;
    char *view, *old;
    size_t n;
    struct stale *next; /* oldest first */
};
static pthread_mutex_t stale_mu = PTHREAD_MUTEX_INITIALIZER;
static struct stale *stales;
static atomic_int n_stales;

/* The bytes that [a, a + n) shares with a piece. */
static size_t shared_part(const struct stale *e, const char *a, size_t n, const char **from)
{
    const char *end = a + n < e->view + e->n ? a + n : e->view + e->n;
    *from = a > e->view ? a : e->view;
    return end > *from ? (size_t)(end - *from) : 0;
}

/* Puts the old bytes over a copy of [view, view + n). Needs stale_mu. */
static void show_old(char *copy, const char *view, size_t n, const struct fk_stream *reader)
{
    for (struct stale *e = stales; e; e = e->next) {
        const char *from;
        size_t k = shared_part(e, view, n, &from);
        if (k && (!reader || e->stream != reader))
            memcpy(copy + (from - view), e->old + (from - e->view), k);
    }
}

static void core_hold_back(char *view, size_t n)
{
    struct stale *e = calloc(1, sizeof *e), **p = &stales;
    *e = (struct stale){.stream = t_stream, .device = t_device, .view = view, .n = n, .old = malloc(n)};
    pthread_mutex_lock(&stale_mu);
    memcpy(e->old, view, n);
    show_old(e->old, view, n, NULL);
    while (*p)
        p = &(*p)->next;
    *p = e;
    n_stales++;
    pthread_mutex_unlock(&stale_mu);
}

/* The host may see the truth of [view, view + n) now, in what is older than `upto` (NULL: in everything). Needs stale_mu. */
static void show_new(const char *view, size_t n, const struct stale *upto)
{
    for (struct stale *e = stales; e && e != upto; e = e->next) {
        const char *from;
        size_t k = shared_part(e, view, n, &from);
        if (k)
            memcpy(e->old + (from - e->view), from, k);
    }
}

/* The host has waited for a stream, or (NULL) for all of a device; or the memory from `gone` on is freed. */
static void stale_end(const struct fk_stream *s, int device, const char *gone, size_t n)
{
    if (!n_stales)
        return;
    pthread_mutex_lock(&stale_mu);
    for (struct stale **p = &stales; *p;) {
        struct stale *e = *p;
        const char *from;
        bool free_it = gone ? shared_part(e, gone, n, &from) > 0 : s ? e->stream == s : e->device == device;
        if (!free_it) {
            p = &e->next;
            continue;
        }
        if (!gone)
            show_new(e->view, e->n, e);
        *p = e->next;
        free(e->old);
        free(e);
        n_stales--;
    }
    pthread_mutex_unlock(&stale_mu);
}

/* A stream goes away without having been waited for; its address may be used again. */
static void stale_orphan(const struct fk_stream *s)
{
    pthread_mutex_lock(&stale_mu);
    for (struct stale *e = stales; e; e = e->next)
        if (e->stream == s)
            e->stream = NULL;
    pthread_mutex_unlock(&stale_mu);
}

/* ---- memory ---- */

static size_t block_at(const void *p)
{
    size_t lo = 0, hi = n_blocks;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (blocks[mid].base <= (const char *)p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo; /* the block before this one may hold p */
}

static bool lookup_locked(const void *p, struct fk_memory *m)
{
    size_t i = block_at(p);
    if (!i || (size_t)((const char *)p - blocks[i - 1].base) >= blocks[i - 1].size)
        return false;
    struct block *b = &blocks[i - 1];
    size_t off = (size_t)((const char *)p - b->base);
    *m = (struct fk_memory){b->type, b->device, b->base, b->view + off, b->size - off};
    return true;
}

static bool core_lookup(const void *p, struct fk_memory *m)
{
    pthread_mutex_lock(&G);
    bool r = lookup_locked(p, m);
    pthread_mutex_unlock(&G);
    return r;
}

static void add_block(struct block b)
{
    if (n_blocks == cap_blocks) {
        cap_blocks = cap_blocks ? 2 * cap_blocks : 64;
        blocks = realloc(blocks, cap_blocks * sizeof *blocks);
    }
    size_t i = block_at(b.base);
    memmove(blocks + i + 1, blocks + i, (n_blocks - i) * sizeof *blocks);
    blocks[i] = b;
    n_blocks++;
}

static size_t round_page(size_t n) { return (n + 4095) & ~(size_t)4095; }

static int core_mem_alloc(void **out, size_t size, int type, bool checked)
{
    if (!out)
        return cudaErrorInvalidValue;
    *out = NULL;
    int dev = core_bind();
    pthread_mutex_lock(&G);
    int r = checked ? unsafe_call() : cudaSuccess;
    if (r || !size)
        goto out;
    r = cudaErrorMemoryAllocation;
    if (size > device_bytes || used_bytes[dev] + size > device_bytes)
        goto out;
    struct block b = {.size = size, .type = type, .device = dev, .owned = true};
    size_t len = round_page(size);
    if (type == cudaMemoryTypeDevice) {
        /* Mapped twice: the caller's address can't be touched by the host, the hidden view can. */
        int fd = (int)syscall(SYS_memfd_create, "fake-device-memory", 1u /* CLOEXEC */);
        if (fd < 0 || ftruncate(fd, (off_t)len)) {
            if (fd >= 0)
                close(fd);
            goto out;
        }
        b.base = mmap(NULL, len, PROT_NONE, MAP_SHARED, fd, 0);
        b.view = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (b.base == MAP_FAILED || b.view == MAP_FAILED)
            goto out;
        used_bytes[dev] += size;
    } else {
        b.base = b.view = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b.base == MAP_FAILED)
            goto out;
    }
    add_block(b);
    *out = b.base;
    r = cudaSuccess;
out:
    pthread_mutex_unlock(&G);
    return r;
}

static void free_block(size_t i)
{
    struct block b = blocks[i];
    memmove(blocks + i, blocks + i + 1, (n_blocks - i - 1) * sizeof *blocks);
    n_blocks--;
    stale_end(NULL, -1, b.view, b.size);
    if (!b.owned)
        return;
    munmap(b.base, round_page(b.size));
    if (b.view != b.base)
        munmap(b.view, round_page(b.size));
    if (b.type == cudaMemoryTypeDevice)
        used_bytes[b.device] -= b.size;
}

static void sync_device(int dev);

static int core_mem_free(void *p, int type, bool checked)
{
    if (!p)
        return cudaSuccess;
    struct fk_memory m;
    pthread_mutex_lock(&G);
    int r = checked ? unsafe_call() : cudaSuccess;
    bool ok = lookup_locked(p, &m) && m.base == p &&
              (type == cudaMemoryTypeHost) == (m.type == cudaMemoryTypeHost);
    pthread_mutex_unlock(&G);
    if (r || !ok)
        return r ? r : cudaErrorInvalidValue;
    if (checked)
        sync_device(m.device); /* as the real one does */
    pthread_mutex_lock(&G);
    size_t i = block_at(p);
    if (i && blocks[i - 1].base == p)
        free_block(i - 1);
    pthread_mutex_unlock(&G);
    return cudaSuccess;
}

struct free_task { fk_task t; void *p; };
static void free_run(fk_task *t, uint64_t ticket)
{
    (void)ticket;
    core_mem_free(((struct free_task *)t)->p, cudaMemoryTypeDevice, false);
}
static void plain_drop(fk_task *t) { free(t); }

static int core_stream_device(cudaStream_t h, int null_device, int *dev)
{
    pthread_mutex_lock(&G);
    struct fk_stream *s = find_stream(h, null_device);
    if (s)
        *dev = s->device;
    pthread_mutex_unlock(&G);
    return s ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

static int core_mem_alloc_async(void **out, size_t n, cudaStream_t h)
{
    int dev, r = core_stream_device(h, -1, &dev);
    if (r)
        return r;
    int before = t_device;
    t_device = dev;
    r = core_mem_alloc(out, n, cudaMemoryTypeDevice, false);
    t_device = before;
    return r;
}

static int core_mem_free_async(void *p, cudaStream_t h)
{
    struct fk_memory m;
    if (!p)
        return cudaSuccess;
    if (!core_lookup(p, &m) || m.base != p || m.type != cudaMemoryTypeDevice)
        return cudaErrorInvalidValue;
    struct free_task *t = calloc(1, sizeof *t);
    t->t = (fk_task){.run = free_run, .drop = plain_drop, .refs = 1};
    t->p = p;
    return core_stream_push(h, -1, &t->t);
}

static int core_host_register(void *p, size_t n)
{
    if (!p || !n)
        return cudaErrorInvalidValue;
    int dev = core_bind();
    struct fk_memory m;
    pthread_mutex_lock(&G);
    int r = unsafe_call();
    if (!r && (lookup_locked(p, &m) || lookup_locked((char *)p + n - 1, &m)))
        r = cudaErrorHostMemoryAlreadyRegistered;
    if (!r)
        add_block((struct block){.base = p, .view = p, .size = n, .type = cudaMemoryTypeHost, .device = dev});
    pthread_mutex_unlock(&G);
    return r;
}

static int core_host_unregister(void *p)
{
    pthread_mutex_lock(&G);
    int r = unsafe_call();
    size_t i = block_at(p);
    if (!r) {
        if (i && blocks[i - 1].base == p && !blocks[i - 1].owned)
            free_block(i - 1);
        else
            r = cudaErrorHostMemoryNotRegistered;
    }
    pthread_mutex_unlock(&G);
    return r;
}

static void core_mem_info(size_t *avail, size_t *total)
{
    int d = core_bind();
    pthread_mutex_lock(&G);
    if (avail)
        *avail = device_bytes - used_bytes[d];
    if (total)
        *total = device_bytes;
    pthread_mutex_unlock(&G);
}

/* With FAKE_COPY_QUEUES=1 a device makes its copies of each direction in the order in which they were called, whatever
 * their streams: as real devices do once there are more streams than queues. */
static struct copy_queue {
    atomic_ullong drawn, served;
} copy_queues[16][2];

static bool has_copy_queues(void)
{
    static atomic_int answer;
    if (!atomic_load(&answer)) {
        const char *text = getenv("FAKE_COPY_QUEUES");
        atomic_store(&answer, text && *text == '1' ? 1 : -1);
    }
    return atomic_load(&answer) > 0;
}

struct copy_task {
    fk_task t;
    struct copy_queue *queue;
    char *dst;
    const char *src;
    size_t n;
    int byte;
    bool to_host;
    char copy[];
};
static uint64_t copy_prepare(fk_task *t) { return atomic_fetch_add(&((struct copy_task *)(void *)t)->queue->drawn, 1); }

static void copy_run(fk_task *t, uint64_t ticket)
{
    struct copy_task *c = (void *)t;
    while (c->queue && atomic_load(&c->queue->served) != ticket) {
        struct timespec ts = {0, 20000};
        nanosleep(&ts, NULL);
    }
    if (c->src)
        memmove(c->dst, c->src, c->n);
    else
        memset(c->dst, c->byte, c->n);
    if (c->queue)
        atomic_fetch_add(&c->queue->served, 1);
    if (!n_stales)
        return;
    pthread_mutex_lock(&stale_mu);
    if (c->to_host)
        show_old(c->dst, c->src, c->n, t_stream);
    else
        show_new(c->dst, c->n, NULL);
    pthread_mutex_unlock(&stale_mu);
}

static int core_stream_sync(cudaStream_t h);

static int core_memcpy(void *dst, const void *src, size_t n, int kind, cudaStream_t h, bool sync)
{
    struct fk_memory d, s;
    if (kind < 0 || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (!n)
        return cudaSuccess;
    if (!dst || !src)
        return cudaErrorInvalidValue;
    bool dk = core_lookup(dst, &d), sk = core_lookup(src, &s);
    if ((dk && d.left < n) || (sk && s.left < n))
        return cudaErrorInvalidValue;
    bool d_dev = dk && d.type == cudaMemoryTypeDevice, s_dev = sk && s.type == cudaMemoryTypeDevice;
    bool wants_d = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool wants_s = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && ((wants_d && !dk) || (!wants_d && d_dev) || (wants_s && !sk) || (!wants_s && s_dev)))
        return cudaErrorInvalidValue;
    int capturing = 0;
    pthread_mutex_lock(&G);
    struct fk_stream *st = find_stream(h, -1);
    int r = st ? cudaSuccess : cudaErrorInvalidResourceHandle;
    if (st)
        capturing = st->capture != NULL;
    if (!r && sync && !implicit_capture(st))
        r = unsafe_call();
    pthread_mutex_unlock(&G);
    if (r)
        return r;
    bool stage = !sk && !capturing; /* pageable source: staged before the call returns */
    struct copy_task *c = calloc(1, sizeof *c + (stage ? n : 0));
    c->t = (fk_task){.run = copy_run, .drop = plain_drop, .refs = 1};
    c->dst = dk ? d.view : dst;
    c->src = sk ? s.view : src;
    c->n = n;
    c->to_host = s_dev && !d_dev;
    if (has_copy_queues() && !capturing && s_dev != d_dev) {
        c->queue = &copy_queues[s_dev ? s.device : d.device][c->to_host];
        c->t.prepare = copy_prepare;
    }
    if (stage) {
        memcpy(c->copy, src, n);
        c->src = c->copy;
    }
    r = core_stream_push(h, -1, &c->t);
    if (!r && !capturing && (sync || !dk))
        r = core_stream_sync(h);
    return r;
}

static int core_memset(void *dst, int byte, size_t n, cudaStream_t h, bool sync)
{
    struct fk_memory d;
    if (!n)
        return cudaSuccess;
    if (!core_lookup(dst, &d) || d.left < n)
        return cudaErrorInvalidValue;
    struct copy_task *c = calloc(1, sizeof *c);
    c->t = (fk_task){.run = copy_run, .drop = plain_drop, .refs = 1};
    c->dst = d.view;
    c->n = n;
    c->byte = byte;
    int r = core_stream_push(h, -1, &c->t);
    return !r && sync ? core_stream_sync(h) : r;
}

/* ---- streams ---- */

static int core_stream_create(cudaStream_t *out, unsigned flags)
{
    if (!out || flags > 1)
        return cudaErrorInvalidValue;
    int dev = core_bind();
    pthread_mutex_lock(&G);
    *out = new_stream(dev, flags, false);
    pthread_mutex_unlock(&G);
    return cudaSuccess;
}

static int core_stream_destroy(cudaStream_t h)
{
    if ((uintptr_t)h <= 2)
        return cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&G);
    struct fk_stream *s = find_stream(h, -1);
    if (s) {
        if (s->capture)
            invalidate(s->capture);
        struct fk_stream **p = &streams;
        while (*p != s)
            p = &(*p)->next;
        *p = s->next;
        stale_orphan(s);
        pthread_mutex_lock(&s->mu);
        s->closing = true;
        pthread_cond_broadcast(&s->cv);
        pthread_mutex_unlock(&s->mu);
    }
    pthread_mutex_unlock(&G);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    stream_unref(s);
    return cudaSuccess;
}

/* Looks a stream up for a call that waits or asks; refuses while it captures. Returns a reference. */
static int hold_stream(cudaStream_t h, struct fk_stream **out)
{
    pthread_mutex_lock(&G);
    struct fk_stream *s = find_stream(h, -1);
    int r = s ? cudaSuccess : cudaErrorInvalidResourceHandle;
    if (s && s->capture) {
        invalidate(s->capture);
        r = cudaErrorStreamCaptureUnsupported;
    } else if (s && s->legacy) {
        struct capture *c = implicit_capture(s);
        if (c) {
            invalidate(c);
            r = cudaErrorStreamCaptureImplicit;
        }
    }
    if (!r)
        atomic_fetch_add(&s->refs, 1);
    pthread_mutex_unlock(&G);
    *out = s;
    return r;
}

static void wait_stream(struct fk_stream *s)
{
    pthread_mutex_lock(&s->mu);
    uint64_t upto = s->queued;
    while (s->done < upto)
        pthread_cond_wait(&s->cv, &s->mu);
    pthread_mutex_unlock(&s->mu);
}

static void sync_device(int dev)
{
    for (size_t skip = 0;; skip++) {
        pthread_mutex_lock(&G);
        struct fk_stream *s = streams;
        for (size_t i = 0; s; s = s->next)
            if (s->device == dev && i++ == skip)
                break;
        if (s)
            atomic_fetch_add(&s->refs, 1);
        pthread_mutex_unlock(&G);
        if (!s)
            return;
        wait_stream(s);
        stream_unref(s);
    }
}

static int core_stream_sync(cudaStream_t h)
{
    struct fk_stream *s;
    int r = hold_stream(h, &s);
    if (r)
        return r;
    if (s->legacy) {
        sync_device(s->device); /* the blocking streams come before it; non-blocking ones are idle soon enough */
    }
    wait_stream(s);
    stale_end(s, -1, NULL, 0);
    stream_unref(s);
    return cudaSuccess;
}

static int core_stream_query(cudaStream_t h)
{
    struct fk_stream *s;
    int r = hold_stream(h, &s);
    if (r)
        return r;
    pthread_mutex_lock(&s->mu);
    r = s->done >= s->queued ? cudaSuccess : cudaErrorNotReady;
    pthread_mutex_unlock(&s->mu);
    stream_unref(s);
    return r;
}

static int core_stream_flags(cudaStream_t h, unsigned *flags)
{
    pthread_mutex_lock(&G);
    struct fk_stream *s = find_stream(h, -1);
    if (s && flags)
        *flags = s->flags;
    pthread_mutex_unlock(&G);
    return s ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

/* Makes later work of `waiter` wait for what is on `on` now (for CCL stand-ins). */
static int core_stream_join(cudaStream_t waiter, cudaStream_t on, int null_device)
{
    int r = cudaSuccess;
    pthread_mutex_lock(&G);
    struct fk_stream *a = find_stream(waiter, null_device), *b = find_stream(on, null_device);
    if (!a || !b)
        r = cudaErrorInvalidResourceHandle;
    else if (b->capture) {
        if (a->capture && a->capture != b->capture)
            r = cudaErrorStreamCaptureMerge;
        else
            a->capture = b->capture;
    } else if (!a->capture)
        push_wait(a, b);
    pthread_mutex_unlock(&G);
    return r;
}

static int core_device_sync(void)
{
    int dev = core_bind();
    pthread_mutex_lock(&G);
    int r = cudaSuccess;
    for (struct fk_stream *s = streams; s; s = s->next)
        if (s->capture && s->device == dev) {
            invalidate(s->capture);
            r = cudaErrorStreamCaptureUnsupported;
        }
    if (!r)
        r = unsafe_call();
    pthread_mutex_unlock(&G);
    if (!r) {
        sync_device(dev);
        stale_end(NULL, dev, NULL, 0);
    }
    return r;
}

struct host_task { fk_task t; cudaHostFn_t fn; void *arg; };
/* One at a time in the whole process: the real driver gives no more than that either. */
static pthread_mutex_t host_mu = PTHREAD_MUTEX_INITIALIZER;
static void host_run(fk_task *t, uint64_t ticket)
{
    (void)ticket;
    struct host_task *h = (void *)t;
    pthread_mutex_lock(&host_mu);
    t_in_host_func = 1;
    h->fn(h->arg);
    t_in_host_func = 0;
    pthread_mutex_unlock(&host_mu);
}

static int core_host_func(cudaStream_t h, cudaHostFn_t fn, void *arg)
{
    if (!fn)
        return cudaErrorInvalidValue;
    struct host_task *t = calloc(1, sizeof *t);
    t->t = (fk_task){.run = host_run, .drop = plain_drop, .refs = 1};
    t->fn = fn;
    t->arg = arg;
    return core_stream_push(h, -1, &t->t);
}

/* ---- events ---- */

static int core_event_create(cudaEvent_t *out, unsigned flags)
{
    if (!out || flags & ~7u)
        return cudaErrorInvalidValue;
    struct fk_event *e = calloc(1, sizeof *e);
    e->device = core_bind();
    e->flags = flags;
    e->refs = 1;
    pthread_mutex_init(&e->mu, NULL);
    pthread_cond_init(&e->cv, NULL);
    pthread_mutex_lock(&G);
    e->next = events;
    events = e;
    pthread_mutex_unlock(&G);
    *out = e;
    return cudaSuccess;
}

static int core_event_destroy(cudaEvent_t h)
{
    pthread_mutex_lock(&G);
    struct fk_event *e = find_event(h);
    if (e) {
        struct fk_event **p = &events;
        while (*p != e)
            p = &(*p)->next;
        *p = e->next;
    }
    pthread_mutex_unlock(&G);
    if (!e)
        return cudaErrorInvalidResourceHandle;
    event_unref(e);
    return cudaSuccess;
}

struct event_task { fk_task t; struct fk_event *e; struct fk_mark *mark; };
static void record_run(fk_task *t, uint64_t ticket)
{
    (void)ticket;
    struct event_task *r = (void *)t;
    pthread_mutex_lock(&r->e->mu);
    clock_gettime(CLOCK_MONOTONIC, &r->mark->time);
    r->mark->over = true;
    pthread_cond_broadcast(&r->e->cv);
    pthread_mutex_unlock(&r->e->mu);
}
static void event_wait_run(fk_task *t, uint64_t ticket)
{
    (void)ticket;
    struct event_task *r = (void *)t;
    pthread_mutex_lock(&r->e->mu);
    while (!r->mark->over)
        pthread_cond_wait(&r->e->cv, &r->e->mu);
    pthread_mutex_unlock(&r->e->mu);
}
static void event_drop(fk_task *t)
{
    mark_unref(((struct event_task *)t)->mark);
    event_unref(((struct event_task *)t)->e);
    free(t);
}
/* Takes over a reference of the mark's. */
static fk_task *event_task(struct fk_event *e, struct fk_mark *mark, void (*run)(fk_task *, uint64_t))
{
    struct event_task *t = calloc(1, sizeof *t);
    t->t = (fk_task){.run = run, .drop = event_drop, .refs = 1};
    t->e = e;
    t->mark = mark;
    atomic_fetch_add(&e->refs, 1);
    return &t->t;
}
/* The last record of an event, with a reference; NULL: it was never recorded. */
static struct fk_mark *last_mark(struct fk_event *e, bool *over)
{
    pthread_mutex_lock(&e->mu);
    struct fk_mark *m = e->mark;
    if (m)
        atomic_fetch_add(&m->refs, 1);
    *over = !m || m->over;
    pthread_mutex_unlock(&e->mu);
    return m;
}

static int core_event_record(cudaEvent_t h, cudaStream_t sh)
{
    pthread_mutex_lock(&G);
    struct fk_event *e = find_event(h);
    struct fk_stream *s = find_stream(sh, -1);
    int r = cudaErrorInvalidResourceHandle;
    if (e && s && e->device == s->device) {
        if (s->capture) {
            r = s->capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
            e->capture = s->capture;
        } else {
            struct fk_mark *m = calloc(1, sizeof *m);
            atomic_store(&m->refs, 2);
            r = push(s, event_task(e, m, record_run));
            if (r)
                mark_unref(m);
            else {
                pthread_mutex_lock(&e->mu);
                struct fk_mark *before = e->mark;
                e->mark = m;
                pthread_mutex_unlock(&e->mu);
                mark_unref(before);
                e->capture = NULL;
            }
        }
    }
    pthread_mutex_unlock(&G);
    return r;
}

static int core_stream_wait(cudaStream_t sh, cudaEvent_t h)
{
    pthread_mutex_lock(&G);
    struct fk_event *e = find_event(h);
    struct fk_stream *s = find_stream(sh, -1);
    int r = cudaSuccess;
    if (!e || !s)
        r = cudaErrorInvalidResourceHandle;
    else if (e->capture) {
        struct capture *c = e->capture;
        if (c->ended)
            r = cudaErrorCapturedEvent;
        else if (c->invalid)
            r = cudaErrorStreamCaptureInvalidated;
        else if (s->legacy) {
            invalidate(c);
            r = cudaErrorStreamCaptureImplicit;
        } else if (s->capture && s->capture != c) {
            invalidate(c);
            invalidate(s->capture);
            r = cudaErrorStreamCaptureMerge;
        } else
            s->capture = c;
    } else {
        bool over;
        struct fk_mark *m = last_mark(e, &over);
        if (s->capture && m) {
            invalidate(s->capture);
            r = cudaErrorStreamCaptureIsolation;
        } else if (!over) {
            r = push(s, event_task(e, m, event_wait_run));
            m = NULL;
        }
        mark_unref(m);
    }
    pthread_mutex_unlock(&G);
    return r;
}

static int core_event_query(cudaEvent_t h, bool wait)
{
    pthread_mutex_lock(&G);
    struct fk_event *e = find_event(h);
    int r = e ? cudaSuccess : cudaErrorInvalidResourceHandle;
    if (e && e->capture) {
        invalidate(e->capture);
        r = cudaErrorCapturedEvent;
    } else if (e)
        r = unsafe_call();
    if (!r)
        atomic_fetch_add(&e->refs, 1);
    pthread_mutex_unlock(&G);
    if (r)
        return r;
    bool over;
    struct fk_mark *m = last_mark(e, &over);
    pthread_mutex_lock(&e->mu);
    while (wait && m && !m->over)
        pthread_cond_wait(&e->cv, &e->mu);
    r = !m || m->over ? cudaSuccess : cudaErrorNotReady;
    pthread_mutex_unlock(&e->mu);
    mark_unref(m);
    event_unref(e);
    return r;
}

static int core_event_device(cudaEvent_t h, int *dev)
{
    pthread_mutex_lock(&G);
    struct fk_event *e = find_event(h);
    if (e)
        *dev = e->device;
    pthread_mutex_unlock(&G);
    return e ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

static int core_event_elapsed(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    int r = cudaSuccess;
    if (!ms)
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&G);
    if (!find_event(a) || !find_event(b) || (a->flags | b->flags) & cudaEventDisableTiming || !a->mark || !b->mark)
        r = cudaErrorInvalidResourceHandle;
    else if (!a->mark->over || !b->mark->over)
        r = cudaErrorNotReady;
    else
        *ms = (float)((double)(b->mark->time.tv_sec - a->mark->time.tv_sec) * 1e3 +
                      (double)(b->mark->time.tv_nsec - a->mark->time.tv_nsec) / 1e6);
    pthread_mutex_unlock(&G);
    return r;
}

/* ---- capture and graphs ---- */

static int core_capture_begin(cudaStream_t h, int mode)
{
    if (mode < 0 || mode > 2)
        return cudaErrorInvalidValue;
    if ((uintptr_t)h <= 2)
        return cudaErrorStreamCaptureUnsupported;
    pthread_mutex_lock(&G);
    struct fk_stream *s = find_stream(h, -1);
    int r = cudaSuccess;
    if (!s)
        r = cudaErrorInvalidResourceHandle;
    else if (s->capture)
        r = cudaErrorIllegalState;
    else {
        struct capture *c = calloc(1, sizeof *c);
        c->mode = mode;
        c->owner = pthread_self();
        c->origin = s;
        c->graph = calloc(1, sizeof *c->graph);
        c->next = captures;
        captures = c;
        s->capture = c;
    }
    pthread_mutex_unlock(&G);
    return r;
}

static void graph_free(struct fk_graph *g)
{
    for (size_t i = 0; i < g->n; i++)
        task_drop(g->nodes[i]);
    free(g->nodes);
    free(g);
}

static int core_capture_end(cudaStream_t h, cudaGraph_t *out)
{
    if (out)
        *out = NULL;
    pthread_mutex_lock(&G);
    struct fk_stream *s = find_stream(h, -1);
    int r = cudaSuccess;
    struct fk_graph *gone = NULL;
    if (!s)
        r = cudaErrorInvalidResourceHandle;
    else if (!s->capture)
        r = cudaErrorIllegalState;
    else if (s->capture->origin != s) {
        invalidate(s->capture);
        r = cudaErrorStreamCaptureUnmatched;
    } else if (s->capture->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(s->capture->owner, pthread_self()))
        r = cudaErrorStreamCaptureWrongThread;
    else {
        struct capture *c = s->capture;
        for (struct fk_stream *o = streams; o; o = o->next)
            if (o->capture == c)
                o->capture = NULL;
        c->ended = true;
        if (c->invalid || !out) {
            gone = c->graph;
            r = c->invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorInvalidValue;
        } else {
            c->graph->next = graphs;
            graphs = c->graph;
            *out = c->graph;
        }
        c->graph = NULL;
    }
    pthread_mutex_unlock(&G);
    if (gone)
        graph_free(gone);
    return r;
}

static int core_capture_status(cudaStream_t h, int *status)
{
    if (!status)
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&G);
    struct fk_stream *s = find_stream(h, -1);
    int r = s ? cudaSuccess : cudaErrorInvalidResourceHandle;
    *status = cudaStreamCaptureStatusNone;
    if (s && s->capture)
        *status = s->capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    else if (s && s->legacy && implicit_capture(s))
        r = cudaErrorStreamCaptureImplicit;
    pthread_mutex_unlock(&G);
    return r;
}

static int core_capture_exchange(int *mode)
{
    if (!mode || *mode < 0 || *mode > 2)
        return cudaErrorInvalidValue;
    int before = t_capture_mode;
    t_capture_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

static struct fk_graph *find_graph(struct fk_graph *h)
{
    for (struct fk_graph *g = graphs; g; g = g->next)
        if (g == h)
            return g;
    return NULL;
}

static int core_graph_copy(cudaGraphExec_t *out, cudaGraph_t h)
{
    if (!out)
        return cudaErrorInvalidValue;
    *out = NULL;
    pthread_mutex_lock(&G);
    struct fk_graph *g = find_graph(h);
    if (g) {
        struct fk_graph *c = calloc(1, sizeof *c);
        for (size_t i = 0; i < g->n; i++) {
            atomic_fetch_add(&g->nodes[i]->refs, 1);
            graph_add(c, g->nodes[i]);
        }
        c->next = graphs;
        graphs = c;
        *out = c;
    }
    pthread_mutex_unlock(&G);
    return g ? cudaSuccess : cudaErrorInvalidValue;
}

static int core_graph_launch(cudaGraphExec_t h, cudaStream_t sh)
{
    pthread_mutex_lock(&G);
    struct fk_graph *g = find_graph(h);
    struct fk_stream *s = find_stream(sh, -1);
    int r = !g ? cudaErrorInvalidValue : !s ? cudaErrorInvalidResourceHandle : cudaSuccess;
    for (size_t i = 0; !r && i < g->n; i++) {
        atomic_fetch_add(&g->nodes[i]->refs, 1);
        r = push(s, g->nodes[i]);
    }
    pthread_mutex_unlock(&G);
    return r;
}

static int core_graph_destroy(cudaGraph_t h)
{
    pthread_mutex_lock(&G);
    struct fk_graph *g = find_graph(h);
    if (g) {
        struct fk_graph **p = &graphs;
        while (*p != g)
            p = &(*p)->next;
        *p = g->next;
    }
    pthread_mutex_unlock(&G);
    if (!g)
        return cudaErrorInvalidValue;
    graph_free(g);
    return cudaSuccess;
}

static void core_register_site(struct fk_site *s) { fk_register_site(s); }
static void core_check_alive(const char *name) { fk_check_alive(name); }

PUBLIC const struct fk_core *fake_driver_table(void)
{
    static const struct fk_core table = {
#define X(ret, name, args) .name = core_##name,
        FK_CORE(X)
#undef X
    };
    return &table;
}

/* ---- the driver API ---- */

#define ENTER(fn) \
    static struct fk_site site = {.name = #fn}; \
    int res = fk_enter(&site, NULL, 0); \
    if (!res && t_in_host_func) \
        res = cudaErrorNotPermitted
#define LEAVE(fn, ...) \
    fk_log(#fn, res, __VA_ARGS__); \
    return res
#define READY() (inited ? n_devices ? 0 : cudaErrorNoDevice : cudaErrorInitializationError)
#define CHECK_DEVICE(d) ((d) < 0 || (d) >= n_devices ? cudaErrorInvalidDevice : 0)
#define STEP(x) \
    do { \
        if (!res) \
            res = (x); \
    } while (0)

PUBLIC CUresult cuInit(unsigned flags)
{
    ENTER(cuInit);
    STEP(flags ? cudaErrorInvalidValue : core_init());
    LEAVE(cuInit, "%u", flags);
}

PUBLIC CUresult cuDriverGetVersion(int *v)
{
    ENTER(cuDriverGetVersion);
    STEP(v ? 0 : cudaErrorInvalidValue);
    if (!res)
        *v = 13000;
    LEAVE(cuDriverGetVersion, "%p", (void *)v);
}

PUBLIC CUresult cuDeviceGetCount(int *n)
{
    ENTER(cuDeviceGetCount);
    STEP(inited ? 0 : cudaErrorInitializationError);
    STEP(n ? 0 : cudaErrorInvalidValue);
    if (!res)
        *n = n_devices;
    LEAVE(cuDeviceGetCount, "%p", (void *)n);
}

PUBLIC CUresult cuDeviceGet(CUdevice *d, int ordinal)
{
    ENTER(cuDeviceGet);
    STEP(READY());
    STEP(CHECK_DEVICE(ordinal));
    if (!res)
        *d = ordinal;
    LEAVE(cuDeviceGet, "%p, %d", (void *)d, ordinal);
}

static void uuid_of(CUuuid *u, int d)
{
    for (int i = 0; i < 16; i++)
        u->bytes[i] = (char)(0xf0 ^ (i * 7) ^ (i == 15 ? physical[d] : 0));
}

PUBLIC CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d)
{
    ENTER(cuDeviceGetUuid);
    STEP(READY());
    STEP(CHECK_DEVICE(d));
    if (!res)
        uuid_of(u, d);
    LEAVE(cuDeviceGetUuid, "%p, %d", (void *)u, d);
}

PUBLIC CUresult cuDeviceGetUuid_v2(CUuuid *u, CUdevice d)
{
    ENTER(cuDeviceGetUuid_v2);
    STEP(READY());
    STEP(CHECK_DEVICE(d));
    if (!res)
        uuid_of(u, d);
    LEAVE(cuDeviceGetUuid_v2, "%p, %d", (void *)u, d);
}

PUBLIC CUresult cuDeviceGetName(char *out, int len, CUdevice d)
{
    ENTER(cuDeviceGetName);
    STEP(READY());
    STEP(CHECK_DEVICE(d));
    if (!res)
        snprintf(out, (size_t)len, "Stand-in Device %d", d);
    LEAVE(cuDeviceGetName, "%p, %d, %d", (void *)out, len, d);
}

PUBLIC CUresult cuDeviceGetPCIBusId(char *out, int len, CUdevice d)
{
    ENTER(cuDeviceGetPCIBusId);
    STEP(READY());
    STEP(CHECK_DEVICE(d));
    if (!res)
        core_pci_bus_id(out, len, d);
    LEAVE(cuDeviceGetPCIBusId, "%p, %d, %d", (void *)out, len, d);
}

PUBLIC CUresult cuDeviceGetAttribute(int *v, int attr, CUdevice d)
{
    ENTER(cuDeviceGetAttribute);
    STEP(READY());
    STEP(CHECK_DEVICE(d));
    STEP(core_attribute(v, attr, d));
    LEAVE(cuDeviceGetAttribute, "%p, %d, %d", (void *)v, attr, d);
}

PUBLIC CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
    ENTER(cuDevicePrimaryCtxRetain);
    STEP(READY());
    STEP(CHECK_DEVICE(d));
    if (!res)
        *c = &contexts[d];
    LEAVE(cuDevicePrimaryCtxRetain, "%p, %d", (void *)c, d);
}

PUBLIC CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d)
{
    ENTER(cuDevicePrimaryCtxRelease_v2);
    STEP(READY());
    STEP(CHECK_DEVICE(d));
    LEAVE(cuDevicePrimaryCtxRelease_v2, "%d", d);
}

PUBLIC CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active)
{
    ENTER(cuDevicePrimaryCtxGetState);
    STEP(READY());
    STEP(CHECK_DEVICE(d));
    if (!res) {
        *flags = 0;
        *active = t_device == d;
    }
    LEAVE(cuDevicePrimaryCtxGetState, "%d", d);
}

PUBLIC CUresult cuCtxGetDevice(CUdevice *d)
{
    ENTER(cuCtxGetDevice);
    STEP(READY());
    STEP(t_device < 0 ? cudaErrorDeviceUninitialized : d ? 0 : cudaErrorInvalidValue);
    if (!res)
        *d = t_device;
    LEAVE(cuCtxGetDevice, "%p", (void *)d);
}

PUBLIC CUresult cuCtxGetCurrent(CUcontext *c)
{
    ENTER(cuCtxGetCurrent);
    STEP(READY());
    if (!res)
        *c = t_device < 0 ? NULL : &contexts[t_device];
    LEAVE(cuCtxGetCurrent, "%p", (void *)c);
}

static int set_context(CUcontext c)
{
    if (c && (c < contexts || c >= contexts + n_devices))
        return cudaErrorDeviceUninitialized;
    t_device = c ? c->device : -1;
    return 0;
}

PUBLIC CUresult cuCtxSetCurrent(CUcontext c)
{
    ENTER(cuCtxSetCurrent);
    STEP(READY());
    STEP(set_context(c));
    LEAVE(cuCtxSetCurrent, "%d", t_device);
}

static _Thread_local int t_stack[16], t_depth;

PUBLIC CUresult cuCtxPushCurrent_v2(CUcontext c)
{
    ENTER(cuCtxPushCurrent_v2);
    STEP(READY());
    int before = t_device;
    STEP(t_depth == 16 ? cudaErrorInvalidValue : set_context(c));
    if (!res)
        t_stack[t_depth++] = before;
    LEAVE(cuCtxPushCurrent_v2, "%d", t_device);
}

PUBLIC CUresult cuCtxPopCurrent_v2(CUcontext *c)
{
    ENTER(cuCtxPopCurrent_v2);
    STEP(READY());
    STEP(t_device < 0 ? cudaErrorDeviceUninitialized : 0);
    if (!res) {
        if (c)
            *c = &contexts[t_device];
        t_device = t_depth ? t_stack[--t_depth] : -1;
    }
    LEAVE(cuCtxPopCurrent_v2, "%d", t_device);
}

PUBLIC CUresult cuCtxSynchronize(void)
{
    ENTER(cuCtxSynchronize);
    STEP(READY());
    STEP(t_device < 0 ? cudaErrorDeviceUninitialized : core_device_sync());
    LEAVE(cuCtxSynchronize, "%s", "");
}

PUBLIC CUresult cuGetErrorString(CUresult code, const char **out)
{
    ENTER(cuGetErrorString);
    if (!res)
        *out = core_error_string(code);
    LEAVE(cuGetErrorString, "%d", code);
}

PUBLIC CUresult cuGetErrorName(CUresult code, const char **out)
{
    ENTER(cuGetErrorName);
    if (!res)
        *out = core_error_name(code);
    LEAVE(cuGetErrorName, "%d", code);
}

PUBLIC CUresult cuStreamIsCapturing(CUstream s, int *status)
{
    ENTER(cuStreamIsCapturing);
    STEP(READY());
    STEP(core_capture_status(s, status));
    LEAVE(cuStreamIsCapturing, "%p", (void *)s);
}

PUBLIC CUresult cuStreamSynchronize(CUstream s)
{
    ENTER(cuStreamSynchronize);
    STEP(READY());
    STEP(core_stream_sync(s));
    LEAVE(cuStreamSynchronize, "%p", (void *)s);
}

PUBLIC CUresult cuStreamQuery(CUstream s)
{
    ENTER(cuStreamQuery);
    STEP(READY());
    STEP(core_stream_query(s));
    LEAVE(cuStreamQuery, "%p", (void *)s);
}

struct value_task { fk_task t; _Atomic uint32_t *at; uint32_t value; unsigned flags; };
static void value_wait_run(fk_task *t, uint64_t ticket)
{
    (void)ticket;
    struct value_task *v = (void *)t;
    for (int spin = 0;; spin++) {
        uint32_t x = atomic_load(v->at);
        bool ok = false;
        switch (v->flags & 3) {
        case CU_STREAM_WAIT_VALUE_GEQ: ok = (int32_t)(x - v->value) >= 0; break;
        case CU_STREAM_WAIT_VALUE_EQ: ok = x == v->value; break;
        case CU_STREAM_WAIT_VALUE_AND: ok = (x & v->value) != 0; break;
        case CU_STREAM_WAIT_VALUE_NOR: ok = ~(x | v->value) != 0; break;
        }
        if (ok)
            return;
        struct timespec ts = {0, spin < 1000 ? 5000 : 200000};
        nanosleep(&ts, NULL);
    }
}
static void value_write_run(fk_task *t, uint64_t ticket)
{
    (void)ticket;
    struct value_task *v = (void *)t;
    atomic_store(v->at, v->value);
}

static int push_value(CUstream s, CUdeviceptr at, uint32_t value, unsigned flags, bool wait)
{
    struct fk_memory m;
    if (at & 3 || !core_lookup((void *)(uintptr_t)at, &m) || m.left < 4 || (wait && flags & ~3u) || (!wait && flags))
        return cudaErrorInvalidValue;
    struct value_task *v = calloc(1, sizeof *v);
    v->t = (fk_task){.run = wait ? value_wait_run : value_write_run, .drop = plain_drop, .refs = 1};
    v->at = (_Atomic uint32_t *)(void *)m.view;
    v->value = value;
    v->flags = flags;
    return core_stream_push(s, -1, &v->t);
}

#define VALUE_CALL(fn, wait) \
    PUBLIC CUresult fn(CUstream s, CUdeviceptr at, uint32_t value, unsigned flags) \
    { \
        ENTER(fn); \
        STEP(READY()); \
        STEP(push_value(s, at, value, flags, wait)); \
        LEAVE(fn, "%p, %#llx, %u, %u", (void *)s, (unsigned long long)at, value, flags); \
    }
VALUE_CALL(cuStreamWaitValue32, true)
VALUE_CALL(cuStreamWaitValue32_v2, true)
VALUE_CALL(cuStreamWriteValue32, false)
VALUE_CALL(cuStreamWriteValue32_v2, false)

PUBLIC CUresult cuPointerGetAttribute(void *out, int attr, CUdeviceptr p)
{
    ENTER(cuPointerGetAttribute);
    struct fk_memory m;
    STEP(READY());
    STEP(core_lookup((void *)(uintptr_t)p, &m) ? 0 : cudaErrorInvalidValue);
    if (!res)
        switch (attr) {
        case 2: *(unsigned *)out = m.type == cudaMemoryTypeHost ? 1 : 2; break;
        case 8: *(unsigned *)out = m.type == cudaMemoryTypeManaged; break;
        case 9: *(int *)out = m.device; break;
        default: res = cudaErrorInvalidValue;
        }
    LEAVE(cuPointerGetAttribute, "%d, %#llx", attr, (unsigned long long)p);
}
