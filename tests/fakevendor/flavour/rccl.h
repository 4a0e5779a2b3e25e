/* RCCL: NCCL under the same names, with fp8 since 2.20.5. */
#ifndef FK_FLAVOUR_RCCL_H
#define FK_FLAVOUR_RCCL_H
#include "../abi/rccl.h"
#define FK_PREFIX nccl
#define FK_DEVICE_GETTER CommCuDevice
#define FK_UNHANDLED UnhandledCudaError
#define FK_HAS_SIGNALS
#define FK_FP8_SINCE 22005
#include "ccl_names.h"
#endif
