/* Stand-in of libhccl.so as it is from 8.5 on: only the operations. It has to be linked against libhcomm.so. */
#include "hccl_split.h"

#define X(fn, params, args) \
    __attribute__((visibility("default"))) HcclResult fn params { return fake_hccl_ops()->fn args; }
HCCL_OPS(X)
#undef X

#ifdef FAKE_VENDOR
__attribute__((visibility("default"))) const char *fake_vendor_name(void);
const char *fake_vendor_name(void) { return FAKE_VENDOR; }
#endif
