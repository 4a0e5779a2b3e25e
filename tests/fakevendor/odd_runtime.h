/* What the runtime stand-ins with a shape of their own share (acl.c, cnrt.c, tx.c). The state lives in the library with the
 * machine's state, which is opened at the first call. */
#ifndef FAKE_ODD_RUNTIME_H
#define FAKE_ODD_RUNTIME_H
#include "core.h"
#include "knobs.h"
#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))
#ifndef FAKE_MACHINE
#define FAKE_MACHINE "libfakemachine.so"
#endif

static pthread_once_t core_once = PTHREAD_ONCE_INIT;
static const struct fk_core *core;
static int core_state = cudaErrorInsufficientDriver;
static _Thread_local int t_last;

static void open_core(void)
{
    void *h = dlopen(FAKE_MACHINE, RTLD_NOW | RTLD_LOCAL);
    const struct fk_core *(*table)(void) = NULL;
    if (h)
        *(void **)&table = dlsym(h, "fake_driver_table");
    if (table) {
        core = table();
        core_state = core->init();
    }
}

static void fk_register_site(struct fk_site *s)
{
    pthread_once(&core_once, open_core);
    if (core)
        core->register_site(s);
    else
        atomic_store(&s->known, 1);
}
static int fk_log_device(void) { return core ? core->peek_device() : -1; }
static void fk_check_alive(const char *name)
{
    if (core)
        core->check_alive(name);
}

#ifdef FAKE_VENDOR
EXPORT const char *fake_vendor_name(void);
EXPORT const char *fake_vendor_name(void) { return FAKE_VENDOR; }
#endif

/* Given by each runtime: its number for one of the machine's. */
static int translate(int code);

/* Copies of a runtime whose synchronous calls wait for nothing but themselves need a stream of their own per device. */
static cudaStream_t copy_stream(void)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static cudaStream_t own[64];
    int d = core->peek_device();
    pthread_mutex_lock(&mu);
    if (!own[d])
        core->stream_create(&own[d], cudaStreamNonBlocking);
    cudaStream_t s = own[d];
    pthread_mutex_unlock(&mu);
    return s;
}

static int copy_now(void *dst, const void *src, size_t n, int kind)
{
    cudaStream_t s = copy_stream();
    int r = core->memcpy(dst, src, n, kind, s, false);
    return r ? r : core->stream_sync(s);
}

__attribute__((unused)) static int set_now(void *dst, int value, size_t n)
{
    return core->memset(dst, value, n, copy_stream(), true);
}

#define ENTER(fn) \
    static struct fk_site site = {.name = #fn}; \
    int res = fk_enter(&site, NULL, 0); \
    if (!res && core_state) \
        res = translate(core_state)
#define STEP(x) \
    do { \
        if (!res) \
            res = (x); \
    } while (0)
/* A step that is the machine's. */
#define MACHINE(x) STEP(translate(x))
#define LEAVE(fn, type, ...) \
    fk_log(#fn, res, __VA_ARGS__); \
    if (res) \
        t_last = res; \
    return (type)res
#define P(x) ((const void *)(x))
#define GOOD_DEVICE(d) ((d) >= 0 && (d) < core->count())
#endif
