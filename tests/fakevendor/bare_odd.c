/* HCCL or, with -DFAKE_CNCL, CNCL whose operations return at once and do nothing, for counting instructions. A communicator
 * has one rank. */
#include <stddef.h>
#define PUBLIC __attribute__((visibility("default")))
#define BARE __attribute__((optimize("omit-frame-pointer"))) PUBLIC
#pragma GCC diagnostic ignored "-Wunused-parameter"
static int the_only_one;

#ifdef FAKE_CNCL
#include "abi/cncl.h"
#include <string.h>
#define C cnclComm_t c, cnrtQueue_t q
#define CS const void *s, void *r, size_t n, cnclDataType_t t
PUBLIC cnclResult_t cnclGetLibVersion(int *a, int *b, int *d) { *a = 1, *b = 25, *d = 0; return 0; }
PUBLIC cnclResult_t cnclGetCliqueId(cnclCliqueId_t id) { memset(id, 1, sizeof *id); return 0; }
PUBLIC cnclResult_t cnclInitComms(cnclComm_t *c, int n, const int *d, const int *k, int all, const cnclCliqueId_t id)
{
    for (int i = 0; i < n; i++)
        c[i] = (cnclComm_t)&the_only_one;
    return 0;
}
PUBLIC cnclResult_t cnclDestroyComms(cnclComm_t *c, int n) { return 0; }
PUBLIC const char *cnclGetErrorStr(cnclResult_t r) { return "none"; }
PUBLIC cnclResult_t cnclGroupStart(void) { return 0; }
PUBLIC cnclResult_t cnclGroupEnd(void) { return 0; }
BARE cnclResult_t cnclBroadcast(CS, int root, C) { return 0; }
BARE cnclResult_t cnclAllGather(CS, C) { return 0; }
BARE cnclResult_t cnclReduce(CS, cnclReduceOp_t op, int root, C) { return 0; }
BARE cnclResult_t cnclAllReduce(CS, cnclReduceOp_t op, C) { return 0; }
BARE cnclResult_t cnclReduceScatter(CS, cnclReduceOp_t op, C) { return 0; }
BARE cnclResult_t cnclAlltoAll(CS, C) { return 0; }
BARE cnclResult_t cnclSend(void *s, const size_t n, cnclDataType_t t, const int p, const C) { return 0; }
BARE cnclResult_t cnclRecv(void *s, const size_t n, cnclDataType_t t, const int p, const C) { return 0; }
#else
#include "abi/hccl.h"
#include <string.h>
#define C HcclComm c, aclrtStream q
#define CS void *s, void *r, uint64_t n, HcclDataType t
PUBLIC HcclResult HcclGetRootInfo(HcclRootInfo *id) { memset(id, 1, sizeof *id); return 0; }
PUBLIC HcclResult HcclCommInitRootInfo(uint32_t n, const HcclRootInfo *id, uint32_t rank, HcclComm *c)
{
    *c = (HcclComm)&the_only_one;
    return 0;
}
PUBLIC HcclResult HcclCommDestroy(HcclComm c) { return 0; }
PUBLIC const char *HcclGetErrorString(HcclResult r) { return "none"; }
PUBLIC HcclResult HcclBatchSendRecv(HcclSendRecvItem *i, uint32_t n, C) { return 0; }
BARE HcclResult HcclAllReduce(CS, HcclReduceOp op, C) { return 0; }
BARE HcclResult HcclReduce(CS, HcclReduceOp op, uint32_t root, C) { return 0; }
BARE HcclResult HcclReduceScatter(CS, HcclReduceOp op, C) { return 0; }
BARE HcclResult HcclBroadcast(void *s, uint64_t n, HcclDataType t, uint32_t root, C) { return 0; }
BARE HcclResult HcclScatter(CS, uint32_t root, C) { return 0; }
BARE HcclResult HcclAllGather(CS, C) { return 0; }
BARE HcclResult HcclSend(void *s, uint64_t n, HcclDataType t, uint32_t p, C) { return 0; }
BARE HcclResult HcclRecv(void *s, uint64_t n, HcclDataType t, uint32_t p, C) { return 0; }
BARE HcclResult HcclAlltoAll(const void *s, uint64_t n, HcclDataType t, const void *r, uint64_t m, HcclDataType u, C) { return 0; }
#endif
