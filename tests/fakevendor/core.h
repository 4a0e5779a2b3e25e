/* What the library with the machine's state (the driver stand-in, or libfakemachine.so) offers to the runtime and CCL
 * stand-ins: one table of functions, found by the symbol `fake_driver_table`. None of these functions writes to the call log. */
#ifndef FAKE_CORE_H
#define FAKE_CORE_H
#include "abi/cuda.h"
#include <stdatomic.h>
#include <stdbool.h>

struct fk_site;

/* A piece of work on a stream. `prepare` is called in the order of launches (also at each launch of a graph that holds
 * the task); what it returns is given to `run`, which is called on the stream's worker thread. */
typedef struct fk_task fk_task;
struct fk_task {
    void (*run)(fk_task *, uint64_t ticket);
    uint64_t (*prepare)(fk_task *);
    void (*drop)(fk_task *);
    atomic_int refs;
};

struct fk_memory {
    int type;       /* cudaMemoryType* */
    int device;
    char *base;     /* the address that the caller knows */
    char *view;     /* the same byte, readable and writable by the stand-ins */
    size_t left;    /* bytes from this address to the end of the allocation */
};

#define FK_CORE(X) \
    X(void, register_site, (struct fk_site *)) \
    X(void, check_alive, (const char *)) \
    X(int, peek_device, (void))                       /* -1: no context on this thread */ \
    X(void, poke_device, (int)) \
    X(int, init, (void)) \
    X(int, count, (void)) \
    X(int, physical, (int))                           /* tells devices of all processes apart */ \
    X(int, bind, (void))                              /* the current device; binds the thread to 0 if it has none */ \
    X(int, in_host_func, (void)) \
    X(const char *, error_string, (int)) \
    X(const char *, error_name, (int)) \
    X(void, pci_bus_id, (char *, int, int)) \
    X(int, attribute, (int *, int, int)) \
    X(bool, lookup, (const void *, struct fk_memory *)) \
    X(int, mem_alloc, (void **, size_t, int type, bool checked)) \
    X(int, mem_free, (void *, int type, bool checked)) \
    X(int, mem_alloc_async, (void **, size_t, cudaStream_t)) \
    X(int, mem_free_async, (void *, cudaStream_t)) \
    X(int, host_register, (void *, size_t)) \
    X(int, host_unregister, (void *)) \
    X(void, mem_info, (size_t *, size_t *)) \
    /* From a task: what it will write here is hidden from copies to the host, until the host waits for this stream. */ \
    X(void, hold_back, (char *view, size_t)) \
    X(int, memcpy, (void *, const void *, size_t, int, cudaStream_t, bool sync)) \
    X(int, memset, (void *, int, size_t, cudaStream_t, bool sync)) \
    X(int, stream_create, (cudaStream_t *, unsigned)) \
    X(int, stream_destroy, (cudaStream_t)) \
    X(int, stream_sync, (cudaStream_t)) \
    X(int, stream_query, (cudaStream_t)) \
    X(int, stream_device, (cudaStream_t, int null_device, int *)) \
    X(int, stream_flags, (cudaStream_t, unsigned *)) \
    X(int, stream_push, (cudaStream_t, int null_device, fk_task *)) \
    X(int, stream_join, (cudaStream_t waiter, cudaStream_t on, int null_device)) \
    X(int, stream_wait, (cudaStream_t, cudaEvent_t)) \
    X(int, device_sync, (void)) \
    X(int, event_create, (cudaEvent_t *, unsigned)) \
    X(int, event_record, (cudaEvent_t, cudaStream_t)) \
    X(int, event_query, (cudaEvent_t, bool wait)) \
    X(int, event_device, (cudaEvent_t, int *)) \
    X(int, event_elapsed, (float *, cudaEvent_t, cudaEvent_t)) \
    X(int, event_destroy, (cudaEvent_t)) \
    X(int, host_func, (cudaStream_t, cudaHostFn_t, void *)) \
    X(int, peer_enable, (int)) \
    X(int, capture_begin, (cudaStream_t, int)) \
    X(int, capture_end, (cudaStream_t, cudaGraph_t *)) \
    X(int, capture_status, (cudaStream_t, int *)) \
    X(int, capture_exchange, (int *)) \
    X(int, graph_copy, (cudaGraphExec_t *, cudaGraph_t)) \
    X(int, graph_launch, (cudaGraphExec_t, cudaStream_t)) \
    X(int, graph_destroy, (cudaGraph_t))

struct fk_core {
#define X(ret, name, args) ret(*name) args;
    FK_CORE(X)
#undef X
};

const struct fk_core *fake_driver_table(void);
#endif
