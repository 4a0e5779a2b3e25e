/* MUSA (Moore Threads). */
#ifndef FK_RUNTIME_MUSA_H
#define FK_RUNTIME_MUSA_H
#include "../core.h"
#include "../abi/musa.h"
#define FK_RUNTIME_PREFIX musa
#define FK_RUNTIME_NAME "musa"
#define FK_NOT_READY musaErrorNotReady
#define FK_HOST_ALLOC HostAlloc
#define FK_HOST_FREE FreeHost
#define FK_ATTRIBUTES musaPointerAttributes
#define FK_COPY_PEER
#include "runtime_names.h"
#endif
