/* A runtime that does not exist. */
#ifndef FK_RUNTIME_INVENTED_H
#define FK_RUNTIME_INVENTED_H
#include "../core.h"
#include "../abi/invented.h"
#define FK_RUNTIME_PREFIX zrt
#define FK_RUNTIME_NAME "zrt"
#define FK_HOST_ALLOC HostAlloc
#define FK_HOST_FREE FreeHost
#define FK_ATTRIBUTES zrtPointerAttributes
#include "runtime_names.h"
#endif
