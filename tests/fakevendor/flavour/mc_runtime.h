/* MACA (MetaX). */
#ifndef FK_RUNTIME_MC_H
#define FK_RUNTIME_MC_H
#include "../core.h"
#include "../abi/mc.h"
#define FK_RUNTIME_PREFIX mc
#define FK_RUNTIME_NAME "mc"
#define FK_NOT_READY mcErrorNotReady
#define FK_HOST_ALLOC HostAlloc
#define FK_HOST_FREE FreeHost
#define FK_ATTRIBUTES mcPointerAttribute_t
#include "runtime_names.h"
#endif
