/* Tsingmicro TCCL. */
#ifndef FK_FLAVOUR_TCCL_H
#define FK_FLAVOUR_TCCL_H
#include "../abi/tccl.h"
#define FK_PREFIX tccl
#define FK_DEVICE_GETTER CommGetDeviceNumber
#define FK_UNHANDLED UnhandledDeviceError
#define FK_UNHANDLED_TEXT "device"
#define FK_NO_CONFIG
#define FK_NO_WINDOWS
#define FK_NO_REDOPS
#define FK_FP8_SINCE 0
#define FK_TYPE(abi) ((abi) - FAKE_TCCL_BASE)
#define FK_REDOP(abi) ((abi) - FAKE_TCCL_BASE)
#define FK_SUSPEND_WITHOUT_FLAGS
/* Each function is also exported under NCCL's name. */
#define FK_ALIASES(X) \
    X(GetVersion) X(GetUniqueId) X(GetLastError) X(CommInitRank) X(CommFinalize) X(CommDestroy) X(CommAbort) X(CommSuspend) \
    X(CommResume) X(CommCount) X(CommGetDeviceNumber) X(CommUserRank) X(CommGetAsyncError) X(CommRegister) X(CommDeregister) \
    X(Reduce) X(Gather) X(Scatter) X(Broadcast) X(AllReduce) X(ReduceScatter) X(AllGather) X(AlltoAll) X(AlltoAllv) X(Send) \
    X(Recv) X(GroupStart) X(GroupEnd)
#include "ccl_names.h"
#endif
