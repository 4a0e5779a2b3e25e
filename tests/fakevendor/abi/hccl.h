/* Minimal declarations of HCCL's ABI (Ascend): only what the stand-in implements. */
#ifndef FAKE_ABI_HCCL_H
#define FAKE_ABI_HCCL_H
#include <stddef.h>
#include <stdint.h>

typedef void *HcclComm;
typedef void *aclrtStream;
#define HCCL_ROOT_INFO_BYTES 4108
typedef struct { char internal[HCCL_ROOT_INFO_BYTES]; } HcclRootInfo;

typedef enum {
    HCCL_SUCCESS = 0, HCCL_E_PARA = 1, HCCL_E_PTR = 2, HCCL_E_MEMORY = 3, HCCL_E_INTERNAL = 4, HCCL_E_NOT_SUPPORT = 5,
    HCCL_E_NOT_FOUND = 6, HCCL_E_UNAVAIL = 7, HCCL_E_SYSCALL = 8, HCCL_E_TIMEOUT = 9, HCCL_E_OPEN_FILE_FAILURE = 10,
    HCCL_E_TCP_CONNECT = 11, HCCL_E_ROCE_CONNECT = 12, HCCL_E_TCP_TRANSFER = 13, HCCL_E_ROCE_TRANSFER = 14,
    HCCL_E_RUNTIME = 15, HCCL_E_DRV = 16, HCCL_E_PROFILING = 17, HCCL_E_CCE = 18, HCCL_E_NETWORK = 19, HCCL_E_AGAIN = 20,
    HCCL_E_REMOTE = 21, HCCL_E_SUSPENDING = 22, HCCL_E_OPRETRY_FAIL = 23, HCCL_E_OOM = 24, HCCL_E_IN_STATUS = 1041
} HcclResult;
typedef enum {
    HCCL_DATA_TYPE_INT8 = 0, HCCL_DATA_TYPE_INT16 = 1, HCCL_DATA_TYPE_INT32 = 2, HCCL_DATA_TYPE_FP16 = 3,
    HCCL_DATA_TYPE_FP32 = 4, HCCL_DATA_TYPE_INT64 = 5, HCCL_DATA_TYPE_UINT64 = 6, HCCL_DATA_TYPE_UINT8 = 7,
    HCCL_DATA_TYPE_UINT16 = 8, HCCL_DATA_TYPE_UINT32 = 9, HCCL_DATA_TYPE_FP64 = 10, HCCL_DATA_TYPE_BFP16 = 11,
    HCCL_DATA_TYPE_INT128 = 12, HCCL_DATA_TYPE_HIF8 = 14, HCCL_DATA_TYPE_FP8E4M3 = 15, HCCL_DATA_TYPE_FP8E5M2 = 16,
    HCCL_DATA_TYPE_FP8E8M0 = 17, HCCL_DATA_TYPE_RESERVED = 255
} HcclDataType;
typedef enum {
    HCCL_REDUCE_SUM = 0, HCCL_REDUCE_PROD = 1, HCCL_REDUCE_MAX = 2, HCCL_REDUCE_MIN = 3, HCCL_REDUCE_RESERVED = 255
} HcclReduceOp;
typedef enum { HCCL_SEND = 0, HCCL_RECV = 1, HCCL_SEND_RECV_RESERVED = 2 } HcclSendRecvType;

typedef struct {
    HcclSendRecvType sendRecvType;
    void *buf;
    uint64_t count;
    HcclDataType dataType;
    uint32_t remoteRank;
} HcclSendRecvItem;
_Static_assert(sizeof(HcclSendRecvItem) == 32, "as in the real header");
_Static_assert(offsetof(HcclSendRecvItem, count) == 16 && offsetof(HcclSendRecvItem, remoteRank) == 28, "as in the real header");

/* Communicators: in libhcomm.so from 8.5 on. */
HcclResult HcclGetRootInfo(HcclRootInfo *info);
HcclResult HcclCommInitRootInfo(uint32_t nranks, const HcclRootInfo *info, uint32_t rank, HcclComm *comm);
HcclResult HcclCommDestroy(HcclComm comm);
HcclResult HcclGetRankSize(HcclComm comm, uint32_t *n);
HcclResult HcclGetRankId(HcclComm comm, uint32_t *rank);
HcclResult HcclGetCommName(HcclComm comm, char *name /* 128 bytes */);
HcclResult HcclBarrier(HcclComm comm, aclrtStream stream);
HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult *error);
const char *HcclGetErrorString(HcclResult code);
/* Only in libhcomm.so from 9.0 on. */
HcclResult HcclGroupStart(void);
HcclResult HcclGroupEnd(void);

/* Operations. */
HcclResult HcclAllReduce(void *send, void *recv, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm comm,
                         aclrtStream stream);
HcclResult HcclReduce(void *send, void *recv, uint64_t count, HcclDataType type, HcclReduceOp op, uint32_t root, HcclComm comm,
                      aclrtStream stream);
HcclResult HcclReduceScatter(void *send, void *recv, uint64_t recv_count, HcclDataType type, HcclReduceOp op, HcclComm comm,
                             aclrtStream stream);
HcclResult HcclReduceScatterV(void *send, const void *send_counts, const void *send_displs, void *recv, uint64_t recv_count,
                              HcclDataType type, HcclReduceOp op, HcclComm comm, aclrtStream stream);
HcclResult HcclBroadcast(void *buf, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm, aclrtStream stream);
HcclResult HcclScatter(void *send, void *recv, uint64_t recv_count, HcclDataType type, uint32_t root, HcclComm comm,
                       aclrtStream stream);
HcclResult HcclAllGather(void *send, void *recv, uint64_t send_count, HcclDataType type, HcclComm comm, aclrtStream stream);
HcclResult HcclAllGatherV(void *send, uint64_t send_count, void *recv, const void *recv_counts, const void *recv_displs,
                          HcclDataType type, HcclComm comm, aclrtStream stream);
HcclResult HcclSend(void *buf, uint64_t count, HcclDataType type, uint32_t dest, HcclComm comm, aclrtStream stream);
HcclResult HcclRecv(void *buf, uint64_t count, HcclDataType type, uint32_t src, HcclComm comm, aclrtStream stream);
HcclResult HcclAlltoAll(const void *send, uint64_t send_count, HcclDataType send_type, const void *recv, uint64_t recv_count,
                        HcclDataType recv_type, HcclComm comm, aclrtStream stream);
HcclResult HcclAlltoAllV(const void *send, const void *send_counts, const void *send_displs, HcclDataType send_type,
                         const void *recv, const void *recv_counts, const void *recv_displs, HcclDataType recv_type,
                         HcclComm comm, aclrtStream stream);
HcclResult HcclBatchSendRecv(HcclSendRecvItem *items, uint32_t n, HcclComm comm, aclrtStream stream);
#endif
