/* A collective library that does not exist. */
#ifndef FK_FLAVOUR_INVENTED_H
#define FK_FLAVOUR_INVENTED_H
#include "../abi/invented.h"
#define FK_PREFIX zccl
#define FK_DEVICE_GETTER CommCuDevice
#define FK_UNHANDLED UnhandledZrtError
#define FK_UNHANDLED_TEXT "zrt"
#define FK_NO_CONFIG
#define FK_NO_WINDOWS
#define FK_NO_REDOPS
#define FK_FP8_SINCE INT32_MAX
#include "ccl_names.h"
#endif
