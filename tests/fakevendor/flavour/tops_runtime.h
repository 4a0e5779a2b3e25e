/* Tops (Enflame): everything belongs to its device. */
#ifndef FK_RUNTIME_TOPS_H
#define FK_RUNTIME_TOPS_H
#include "../core.h"
#include "../abi/tops.h"
#define FK_RUNTIME_PREFIX tops
#define FK_RUNTIME_NAME "tops"
#define FK_HOST_ALLOC HostMalloc
#define FK_HOST_FREE HostFree
#define FK_ATTRIBUTES topsPointerAttribute_t
#define FK_TYPE_FIELD memoryType
#define FK_MANAGED_FIELD
#define FK_UNKNOWN_POINTER topsErrorInvalidValue
#define FK_MALLOC_ASYNC_FLAGS
#define FK_SCOPED 1
#include "runtime_names.h"
#endif
