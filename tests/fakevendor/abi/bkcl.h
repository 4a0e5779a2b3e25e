/* Minimal declarations of BKCL's ABI (Kunlunxin): only what the stand-in implements. The orders of the arguments are the
 * vendor's; the size of the id and all values but BKCL_SUCCESS are not known: those below are the stand-in's own, and odd on
 * purpose, so that whoever works with it has been told them. */
#ifndef FAKE_ABI_BKCL_H
#define FAKE_ABI_BKCL_H
#include <stddef.h>
#include <stdint.h>

typedef struct bkclContext *BKCLContext_t;
#define BKCL_UNIQUE_ID_BYTES 1024
typedef struct { char internal[BKCL_UNIQUE_ID_BYTES]; } BKCLUniqueId;

typedef enum {
    BKCL_SUCCESS = 0, BKCL_INVALID_ARGUMENT = 41, BKCL_RUNTIME_ERROR = 42, BKCL_SYSTEM_ERROR = 43, BKCL_INTERNAL_ERROR = 44,
    BKCL_REMOTE_ERROR = 45, BKCL_UNSUPPORTED = 46
} BKCLResult_t;
typedef enum {
    BKCL_UINT8 = 3, BKCL_INT32 = 5, BKCL_INT64 = 8, BKCL_FLOAT16 = 13, BKCL_FLOAT = 21, BKCL_FLOAT64 = 34, BKCL_BFLOAT16 = 55
} BKCLDataType;
typedef enum { BKCL_MAX = 2, BKCL_ADD = 4, BKCL_AVG = 6, BKCL_MIN = 7, BKCL_PRODUCT = 9, BKCL_NUM_OPS = 11 } BKCLOp;

/* A stream is a cudaStream_t of the CUDA shim. */
BKCLResult_t bkcl_get_unique_id(BKCLUniqueId *id);
BKCLResult_t bkcl_init_rank(BKCLContext_t *ctx, int rank, int nranks, BKCLUniqueId *id);
BKCLResult_t bkcl_destroy_context(BKCLContext_t ctx);
BKCLResult_t bkcl_comm_abort(BKCLContext_t ctx);
BKCLResult_t bkcl_comm_count(BKCLContext_t ctx, int *count);
BKCLResult_t bkcl_comm_user_rank(BKCLContext_t ctx, int *rank);
BKCLResult_t bkcl_group_start(void);
BKCLResult_t bkcl_group_end(void);
BKCLResult_t bkcl_broadcast(BKCLContext_t ctx, const void *send, void *recv, size_t n, BKCLDataType type, int root, void *stream);
BKCLResult_t bkcl_reduce(BKCLContext_t ctx, const void *send, void *recv, size_t n, BKCLDataType type, BKCLOp op, int root,
                         void *stream);
BKCLResult_t bkcl_all_reduce(BKCLContext_t ctx, const void *send, void *recv, size_t n, BKCLDataType type, BKCLOp op,
                             void *stream);
BKCLResult_t bkcl_reduce_scatter(BKCLContext_t ctx, const void *send, void *recv, size_t recv_count, BKCLDataType type,
                                 BKCLOp op, void *stream);
BKCLResult_t bkcl_all_gather(BKCLContext_t ctx, const void *send, size_t send_count, void *recv, BKCLDataType type,
                             void *stream);
BKCLResult_t bkcl_all_to_all(BKCLContext_t ctx, const void *send, size_t count, void *recv, BKCLDataType type, void *stream);
/* The four arrays lie in device memory. */
BKCLResult_t bkcl_all_to_all_v(BKCLContext_t ctx, const void *send, const size_t *send_counts, const size_t *send_displs,
                               BKCLDataType type, void *recv, const size_t *recv_counts, const size_t *recv_displs,
                               BKCLDataType recv_type, void *stream);
BKCLResult_t bkcl_send(BKCLContext_t ctx, const void *buf, size_t n, int peer, BKCLDataType type, void *stream);
BKCLResult_t bkcl_recv(BKCLContext_t ctx, void *buf, size_t n, int peer, BKCLDataType type, void *stream);
#endif
