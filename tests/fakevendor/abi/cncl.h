/* Minimal declarations of CNCL's ABI (Cambricon): only what the stand-in implements. */
#ifndef FAKE_ABI_CNCL_H
#define FAKE_ABI_CNCL_H
#include <stddef.h>
#include <stdint.h>

typedef struct cnclComm *cnclComm_t;
typedef struct cnrtQueueSt *cnrtQueue_t;
struct cnclCliqueId { char data[128]; uint64_t hash; };
typedef struct cnclCliqueId *cnclCliqueId_t;
_Static_assert(sizeof(struct cnclCliqueId) == 136, "as in the real header");

typedef enum {
    CNCL_RET_SUCCESS = 0x0, CNCL_RET_ERR_INTERNAL = 0x1, CNCL_RET_ERR_UNSUPPORTED = 0x11, CNCL_RET_ERR_NULL_POINTER = 0x21,
    CNCL_RET_ERR_BUILD_RING = 0x31, CNCL_RET_ERR_BUILD_TREE = 0x41, CNCL_RET_ERR_INIT = 0x51, CNCL_RET_ERR_NOT_INIT = 0x61,
    CNCL_RET_ERR_REINIT = 0x71, CNCL_RET_ERR_NO_ALGO = 0x81, CNCL_RET_ERR_INVALID_VERSION = 0x91, CNCL_RET_ERR_SYSTEM = 0x2,
    CNCL_RET_ERR_SYS_MALLOC = 0x12, CNCL_RET_ERR_SYS_SOCKET = 0x22, CNCL_RET_ERR_SYS_IBV = 0x32,
    CNCL_RET_ERR_MLU_RUNTIME = 0x3, CNCL_RET_ERR_CNRT_DEVICE = 0x13, CNCL_RET_ERR_CNRT_MEMCOPY = 0x23,
    CNCL_RET_ERR_CNRT_MALLOC = 0x33, CNCL_RET_ERR_MLU_DEVICE = 0x4, CNCL_RET_ASYNC_IN_PROGRESS = 0x6,
    CNCL_RET_ASYNC_ERROR = 0x16, CNCL_RET_ASYNC_UNKNOWN = 0x26, CNCL_RET_ERR_ARGUMENTS = 0x7
} cnclResult_t;
typedef enum {
    cnclInvalid = 0x0, cnclHalf = 0x10, cnclBfloat16 = 0x11, cnclFloat = 0x12, cnclInt8 = 0x20, cnclInt16 = 0x21,
    cnclInt32 = 0x22, cnclInt64 = 0x23, cnclUint8 = 0x30, cnclUint16 = 0x31, cnclUint32 = 0x32, cnclUint64 = 0x33
} cnclDataType_t;
typedef enum { cnclSum = 0, cnclProd = 1, cnclMax = 2, cnclMin = 3 } cnclReduceOp_t;
struct cnclCommConfig { int priority; /* 0, 0x10 or 0x11 */ };

cnclResult_t cnclGetLibVersion(int *major, int *minor, int *patch);
cnclResult_t cnclGetCliqueId(cnclCliqueId_t id);
cnclResult_t cnclInitComms(cnclComm_t *comms, int num_comm, const int *dev_list, const int *rank_list, int nrank,
                           const cnclCliqueId_t id);
cnclResult_t cnclDestroyComms(cnclComm_t *comms, int num_comm);
cnclResult_t cnclFreeComm(cnclComm_t comm);
cnclResult_t cnclAbortComm(cnclComm_t comm);
cnclResult_t cnclSetCommConfig(cnclComm_t comm, const struct cnclCommConfig *config);
cnclResult_t cnclGetCommCount(int *count, const cnclComm_t comm);
cnclResult_t cnclGetCommRank(int *rank, const cnclComm_t comm);
cnclResult_t cnclGetCommDevice(int *device, const cnclComm_t comm);
cnclResult_t cnclGetCommAsyncError(const cnclComm_t comm);
const char *cnclGetErrorStr(cnclResult_t code);
cnclResult_t cnclBcast(void *buf, size_t n, cnclDataType_t type, int root, cnclComm_t comm, cnrtQueue_t queue);
cnclResult_t cnclBroadcast(const void *send, void *recv, size_t n, cnclDataType_t type, int root, cnclComm_t comm,
                           cnrtQueue_t queue);
cnclResult_t cnclAllGather(const void *send, void *recv, size_t n, cnclDataType_t type, cnclComm_t comm, cnrtQueue_t queue);
cnclResult_t cnclReduce(const void *send, void *recv, size_t n, cnclDataType_t type, cnclReduceOp_t op, int root,
                        cnclComm_t comm, cnrtQueue_t queue);
cnclResult_t cnclAllReduce(const void *send, void *recv, size_t n, cnclDataType_t type, cnclReduceOp_t op, cnclComm_t comm,
                           cnrtQueue_t queue);
cnclResult_t cnclReduceScatter(const void *send, void *recv, size_t recv_count, cnclDataType_t type, cnclReduceOp_t op,
                               cnclComm_t comm, cnrtQueue_t queue);
cnclResult_t cnclAlltoAll(const void *send, void *recv, size_t per_peer, cnclDataType_t type, cnclComm_t comm,
                          cnrtQueue_t queue);
cnclResult_t cnclAlltoAllv(const void **send, uint32_t *send_counts, cnclDataType_t *send_types, void **recv,
                           uint32_t *recv_counts, cnclDataType_t *recv_types, cnclComm_t comm, cnrtQueue_t queue);
cnclResult_t cnclSend(void *buf, const size_t n, cnclDataType_t type, const int dest, const cnclComm_t comm,
                      cnrtQueue_t queue);
cnclResult_t cnclRecv(void *buf, const size_t n, cnclDataType_t type, const int src, const cnclComm_t comm,
                      cnrtQueue_t queue);
cnclResult_t cnclGroupStart(void);
cnclResult_t cnclGroupEnd(void);
#endif
