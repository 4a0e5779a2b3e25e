/* From 8.5 on the operations are in libhccl.so and the communicators in libhcomm.so, on which libhccl.so depends. In the
 * stand-ins the engine is in libhcomm.so, which offers the operations to libhccl.so through this table. */
#ifndef FAKE_HCCL_SPLIT_H
#define FAKE_HCCL_SPLIT_H
#include "abi/hccl.h"

#define HCCL_OPS(X) \
    X(HcclAllReduce, (void *s, void *r, uint64_t n, HcclDataType t, HcclReduceOp op, HcclComm c, aclrtStream st), \
      (s, r, n, t, op, c, st)) \
    X(HcclReduce, (void *s, void *r, uint64_t n, HcclDataType t, HcclReduceOp op, uint32_t root, HcclComm c, aclrtStream st), \
      (s, r, n, t, op, root, c, st)) \
    X(HcclReduceScatter, (void *s, void *r, uint64_t n, HcclDataType t, HcclReduceOp op, HcclComm c, aclrtStream st), \
      (s, r, n, t, op, c, st)) \
    X(HcclReduceScatterV, (void *s, const void *sc, const void *sd, void *r, uint64_t n, HcclDataType t, HcclReduceOp op, \
                           HcclComm c, aclrtStream st), (s, sc, sd, r, n, t, op, c, st)) \
    X(HcclBroadcast, (void *b, uint64_t n, HcclDataType t, uint32_t root, HcclComm c, aclrtStream st), (b, n, t, root, c, st)) \
    X(HcclScatter, (void *s, void *r, uint64_t n, HcclDataType t, uint32_t root, HcclComm c, aclrtStream st), \
      (s, r, n, t, root, c, st)) \
    X(HcclAllGather, (void *s, void *r, uint64_t n, HcclDataType t, HcclComm c, aclrtStream st), (s, r, n, t, c, st)) \
    X(HcclAllGatherV, (void *s, uint64_t n, void *r, const void *rc, const void *rd, HcclDataType t, HcclComm c, \
                       aclrtStream st), (s, n, r, rc, rd, t, c, st)) \
    X(HcclSend, (void *b, uint64_t n, HcclDataType t, uint32_t peer, HcclComm c, aclrtStream st), (b, n, t, peer, c, st)) \
    X(HcclRecv, (void *b, uint64_t n, HcclDataType t, uint32_t peer, HcclComm c, aclrtStream st), (b, n, t, peer, c, st)) \
    X(HcclAlltoAll, (const void *s, uint64_t sn, HcclDataType stype, const void *r, uint64_t rn, HcclDataType rtype, \
                     HcclComm c, aclrtStream st), (s, sn, stype, r, rn, rtype, c, st)) \
    X(HcclAlltoAllV, (const void *s, const void *sc, const void *sd, HcclDataType stype, const void *r, const void *rc, \
                      const void *rd, HcclDataType rtype, HcclComm c, aclrtStream st), (s, sc, sd, stype, r, rc, rd, rtype, c, st)) \
    X(HcclBatchSendRecv, (HcclSendRecvItem *items, uint32_t n, HcclComm c, aclrtStream st), (items, n, c, st))

struct hccl_ops {
#define X(fn, params, args) HcclResult(*fn) params;
    HCCL_OPS(X)
#undef X
};

const struct hccl_ops *fake_hccl_ops(void);
#endif
