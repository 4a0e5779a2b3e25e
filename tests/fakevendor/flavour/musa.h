/* Moore Threads MCCL. */
#ifndef FK_FLAVOUR_MUSA_H
#define FK_FLAVOUR_MUSA_H
#include "../abi/mccl_musa.h"
#define FK_PREFIX mccl
#define FK_DEVICE_GETTER CommMuDevice
#define FK_UNHANDLED UnhandledMusaError
#define FK_UNHANDLED_TEXT "musa"
#define FK_OPAQUE_CONFIG
#define FK_FP8_SINCE INT32_MAX
#include "ccl_names.h"
#endif
