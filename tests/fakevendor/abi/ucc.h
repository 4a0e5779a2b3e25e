/* What is called of UCC's interface 1.2 to 1.9, from libucc's headers. */
#ifndef FAKE_ABI_UCC_H
#define FAKE_ABI_UCC_H
#include <stddef.h>
#include <stdint.h>

typedef int ucc_status_t;
enum {
    UCC_OK = 0,
    UCC_INPROGRESS = 1,
    UCC_OPERATION_INITIALIZED = 2,
    UCC_ERR_NOT_SUPPORTED = -1,
    UCC_ERR_INVALID_PARAM = -3,
    UCC_ERR_NO_MEMORY = -4,
    UCC_ERR_NO_RESOURCE = -5,
    UCC_ERR_NO_MESSAGE = -6,
    UCC_ERR_TIMED_OUT = -8,
};

typedef void *ucc_lib_h, *ucc_lib_config_h, *ucc_context_h, *ucc_context_config_h, *ucc_team_h;
typedef struct ucc_coll_req {
    ucc_status_t status;
} *ucc_coll_req_h;

enum { UCC_COLL_TYPE_BCAST = 1 << 6 };
enum { UCC_LIB_PARAM_FIELD_THREAD_MODE = 1, UCC_THREAD_MULTIPLE = 2 };
enum { UCC_TEAM_PARAM_FIELD_OOB = 1 << 7 };
enum { UCC_COLL_ARGS_FIELD_TAG = 1 << 1, UCC_COLL_ARGS_FIELD_ACTIVE_SET = 1 << 4 };
enum { UCC_DT_UINT8 = 5 << 3, UCC_MEMORY_TYPE_HOST = 0 };

typedef struct ucc_lib_params {
    uint64_t mask;
    unsigned thread_mode;
    uint64_t coll_types, reduction_types;
    unsigned sync_type;
} ucc_lib_params_t;

typedef struct ucc_oob_coll {
    ucc_status_t (*allgather)(void *, void *, size_t, void *, void **);
    ucc_status_t (*req_test)(void *);
    ucc_status_t (*req_free)(void *);
    void *coll_info;
    uint32_t n_oob_eps, oob_ep;
} ucc_oob_coll_t;

typedef struct ucc_context_params {
    uint64_t mask;
    unsigned type, sync_type;
    ucc_oob_coll_t oob;
    uint64_t ctx_id;
    void *segments;
    uint64_t n_segments;
} ucc_context_params_t;

typedef struct ucc_team_params {
    uint64_t mask, flags;
    unsigned ordering;
    uint64_t outstanding_colls, ep, *ep_list;
    unsigned ep_range;
    uint64_t team_size;
    unsigned sync_type;
    ucc_oob_coll_t oob;
    uint64_t more[12];
} ucc_team_params_t;

typedef struct ucc_coll_buffer_info {
    void *buffer;
    uint64_t count, datatype;
    unsigned mem_type;
} ucc_coll_buffer_info_t;

typedef struct ucc_coll_buffer_info_v {
    void *buffer, *counts, *displacements;
    uint64_t datatype;
    unsigned mem_type;
} ucc_coll_buffer_info_v_t;

typedef struct ucc_coll_args {
    uint64_t mask;
    unsigned coll_type;
    union {
        ucc_coll_buffer_info_t info;
        ucc_coll_buffer_info_v_t info_v;
    } src, dst;
    unsigned op;
    uint64_t flags, root;
    unsigned error_type;
    uint16_t tag;
    void *global_work_buffer;
    struct {
        void (*cb)(void *, ucc_status_t);
        void *data;
    } cb;
    double timeout;
    struct {
        uint64_t start;
        int64_t stride;
        uint64_t size;
    } active_set;
    void *src_memh, *dst_memh;
} ucc_coll_args_t;

void ucc_get_version(unsigned *, unsigned *, unsigned *);
const char *ucc_status_string(ucc_status_t);
ucc_status_t ucc_lib_config_read(const char *, const char *, ucc_lib_config_h *);
void ucc_lib_config_release(ucc_lib_config_h);
ucc_status_t ucc_init_version(unsigned, unsigned, const ucc_lib_params_t *, const ucc_lib_config_h, ucc_lib_h *);
ucc_status_t ucc_finalize(ucc_lib_h);
ucc_status_t ucc_context_config_read(ucc_lib_h, const char *, ucc_context_config_h *);
void ucc_context_config_release(ucc_context_config_h);
ucc_status_t ucc_context_create(ucc_lib_h, const ucc_context_params_t *, const ucc_context_config_h, ucc_context_h *);
ucc_status_t ucc_context_progress(ucc_context_h);
ucc_status_t ucc_context_destroy(ucc_context_h);
ucc_status_t ucc_team_create_post(ucc_context_h *, uint32_t, const ucc_team_params_t *, ucc_team_h *);
ucc_status_t ucc_team_create_test(ucc_team_h);
ucc_status_t ucc_team_destroy(ucc_team_h);
ucc_status_t ucc_collective_init(ucc_coll_args_t *, ucc_coll_req_h *, ucc_team_h);
ucc_status_t ucc_collective_post(ucc_coll_req_h);
ucc_status_t ucc_collective_finalize(ucc_coll_req_h);
#endif
