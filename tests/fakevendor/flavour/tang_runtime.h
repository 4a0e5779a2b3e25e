/* Tang (Sunrise). */
#ifndef FK_RUNTIME_TANG_H
#define FK_RUNTIME_TANG_H
#include "../core.h"
#include "../abi/tang.h"
#define FK_RUNTIME_PREFIX tang
#define FK_RUNTIME_NAME "tang"
#define FK_NOT_READY tangErrorNotReady
#define FK_HOST_ALLOC HostAlloc
#define FK_HOST_FREE FreeHost
#define FK_ATTRIBUTES tangPointerAttributes
#include "runtime_names.h"
#endif
