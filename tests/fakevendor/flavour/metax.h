/* MetaX MCCL. */
#ifndef FK_FLAVOUR_METAX_H
#define FK_FLAVOUR_METAX_H
#include "../abi/mccl_metax.h"
#define FK_PREFIX mccl
#define FK_DEVICE_GETTER CommMcDevice
#define FK_UNHANDLED UnhandledMacaError
#define FK_UNHANDLED_TEXT "maca"
#define FK_INIT_MULTI
#define FK_FP8_SINCE INT32_MAX
#include "ccl_names.h"
#endif
