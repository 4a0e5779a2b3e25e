/* Enflame ECCL. */
#ifndef FK_FLAVOUR_ECCL_H
#define FK_FLAVOUR_ECCL_H
#include "../abi/eccl.h"
#define FK_PREFIX eccl
#define FK_DEVICE_GETTER CommDevice
#define FK_UNHANDLED UnhandledTopsError
#define FK_UNHANDLED_TEXT "tops"
#define FK_NO_CONFIG
#define FK_NO_WINDOWS
#define FK_FP8_SINCE INT32_MAX
#define FK_TYPED_ALLTOALL
#define FK_WRONG_DEVICE FK_SILENT
#define FK_NARROW 1
#define FK_UNSET_GATHER 1
#define FK_ONE_KIND 1
#define FK_STALE_RESULTS 1
#include "ccl_names.h"
#endif
