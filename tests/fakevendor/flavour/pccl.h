/* Sunrise PCCL. */
#ifndef FK_FLAVOUR_PCCL_H
#define FK_FLAVOUR_PCCL_H
#include "../abi/pccl.h"
#define FK_PREFIX pccl
#define FK_DEVICE_GETTER CommCuDevice
#define FK_UNHANDLED UnhandledTangError
#define FK_UNHANDLED_TEXT "tang"
#define FK_NO_CONFIG
#define FK_NO_WINDOWS
#define FK_NO_REDOPS
#define FK_FP8_SINCE INT32_MAX
#define FK_TYPE(abi) ((abi) == pcclBfloat16 ? T_BF16 : (abi) < pcclBfloat16 ? (abi) : -1)
#define FK_WRONG_DEVICE pcclInvalidDeviceIndex
#define FK_PAIRS_ONLY 1
#include "ccl_names.h"
#endif
