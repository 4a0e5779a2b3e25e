/* flagos-comm against UCC's collectives in the same processes.
 *     ucc RANKS LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE
 *
 * Each call is begun, posted, moved until it is over and ended, as a program does whose buffers change. UCC has no sends and
 * receives.
 */
#include <ucc/api/ucc.h>

#include "operations.h"
#include "processes.h"

enum { ROUNDS_MOST = 64, SAID_MOST = 4096 };

/* What UCC lets the ranks tell each other while it begins: a place of its own for every rank in every round. */
typedef struct {
    int said[ROUNDS_MOST];
    char bytes[ROUNDS_MOST][PROCESSES_MOST][SAID_MOST];
} board;

typedef struct {
    int rank, nranks, yields;
    board *board;
    int round; /* How many this rank has begun. */
    ucc_context_h context;
    ucc_team_h team;
} ranks;

/* One round that is under way. */
typedef struct {
    ranks *of;
    int number;
    void *to;
    size_t length;
} asked;

static void check(const char *what, ucc_status_t status) {
    if (status != UCC_OK) pair_die("%s: %s", what, ucc_status_string(status));
}

static ucc_status_t ask(void *own, void *to, size_t length, void *of, void **request) {
    ranks *r = (ranks *)of;
    asked *a = (asked *)malloc(sizeof *a);
    if (!a || r->round == ROUNDS_MOST || length > SAID_MOST) pair_die("UCC wants to say too much: %zu bytes", length);
    *a = (asked){.of = r, .number = r->round++, .to = to, .length = length};
    memcpy(r->board->bytes[a->number][r->rank], own, length);
    __atomic_add_fetch(&r->board->said[a->number], 1, __ATOMIC_ACQ_REL);
    *request = a;
    return UCC_OK;
}

static ucc_status_t answered(void *request) {
    const asked *a = (const asked *)request;
    const ranks *r = a->of;
    if (__atomic_load_n(&r->board->said[a->number], __ATOMIC_ACQUIRE) != r->nranks) {
        sched_yield();
        return UCC_INPROGRESS;
    }
    for (int rank = 0; rank < r->nranks; rank++)
        memcpy((char *)a->to + (size_t)rank * a->length, r->board->bytes[a->number][rank], a->length);
    return UCC_OK;
}

static ucc_status_t forget(void *request) {
    free(request);
    return UCC_OK;
}

static ucc_oob_coll_t by_board(ranks *r) {
    return (ucc_oob_coll_t){
        .allgather = ask,
        .req_test = answered,
        .req_free = forget,
        .coll_info = r,
        .n_oob_eps = (uint32_t)r->nranks,
        .oob_ep = (uint32_t)r->rank,
    };
}

static void begin(ranks *r) {
    ucc_lib_config_h of_library;
    check("ucc_lib_config_read", ucc_lib_config_read(NULL, NULL, &of_library));
    const ucc_lib_params_t library_params = {
        .mask = UCC_LIB_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCC_THREAD_SINGLE,
    };
    ucc_lib_h library;
    check("ucc_init", ucc_init(&library_params, of_library, &library));
    ucc_lib_config_release(of_library);

    ucc_context_config_h of_context;
    check("ucc_context_config_read", ucc_context_config_read(library, NULL, &of_context));
    const ucc_context_params_t context_params = {
        .mask = UCC_CONTEXT_PARAM_FIELD_OOB,
        .oob = by_board(r),
    };
    check("ucc_context_create", ucc_context_create(library, &context_params, of_context, &r->context));
    ucc_context_config_release(of_context);

    const ucc_team_params_t team_params = {
        .mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE,
        .oob = by_board(r),
        .ep = (uint64_t)r->rank,
        .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
    };
    check("ucc_team_create_post", ucc_team_create_post(&r->context, 1, &team_params, &r->team));
    ucc_status_t status;
    while ((status = ucc_team_create_test(r->team)) == UCC_INPROGRESS) {
        ucc_context_progress(r->context);
        sched_yield();
    }
    check("ucc_team_create_test", status);
}

static void run(ranks *r, ucc_coll_args_t *args) {
    ucc_coll_req_h request;
    check("ucc_collective_init", ucc_collective_init(args, &request, r->team));
    check("ucc_collective_post", ucc_collective_post(request));
    ucc_status_t status;
    unsigned idle = 0;
    while ((status = ucc_collective_test(request)) == UCC_INPROGRESS) {
        ucc_context_progress(r->context);
        if (r->yields && ++idle > 16) sched_yield();
    }
    check("UCC's collective", status);
    check("ucc_collective_finalize", ucc_collective_finalize(request));
}

static ucc_coll_buffer_info_t floats(const float *buffer, size_t count) {
    return (ucc_coll_buffer_info_t){
        .buffer = (void *)(uintptr_t)buffer,
        .count = count,
        .datatype = UCC_DT_FLOAT32,
        .mem_type = UCC_MEMORY_TYPE_HOST,
    };
}

static void ucc_all_reduce(void *context, const float *send, float *recv, size_t count) {
    ucc_coll_args_t args = {
        .coll_type = UCC_COLL_TYPE_ALLREDUCE,
        .op = UCC_OP_SUM,
        .src.info = floats(send, count),
        .dst.info = floats(recv, count),
    };
    run((ranks *)context, &args);
}

static void ucc_all_gather(void *context, const float *send, float *recv, size_t part) {
    ranks *r = (ranks *)context;
    ucc_coll_args_t args = {
        .coll_type = UCC_COLL_TYPE_ALLGATHER,
        .src.info = floats(send, part),
        .dst.info = floats(recv, part * (size_t)r->nranks),
    };
    run(r, &args);
}

static void ucc_reduce_scatter(void *context, const float *send, float *recv, size_t part) {
    ranks *r = (ranks *)context;
    ucc_coll_args_t args = {
        .coll_type = UCC_COLL_TYPE_REDUCE_SCATTER,
        .op = UCC_OP_SUM,
        .src.info = floats(send, part * (size_t)r->nranks),
        .dst.info = floats(recv, part),
    };
    run(r, &args);
}

static void ucc_all_to_all(void *context, const float *send, float *recv, size_t part) {
    ranks *r = (ranks *)context;
    ucc_coll_args_t args = {
        .coll_type = UCC_COLL_TYPE_ALLTOALL,
        .src.info = floats(send, part * (size_t)r->nranks),
        .dst.info = floats(recv, part * (size_t)r->nranks),
    };
    run(r, &args);
}

static void ucc_broadcast(void *context, float *buffer, size_t count, int root) {
    ucc_coll_args_t args = {
        .coll_type = UCC_COLL_TYPE_BCAST,
        .root = (uint64_t)root,
        .src.info = floats(buffer, count),
    };
    run((ranks *)context, &args);
}

int main(int argc, char **argv) {
    if (argc != 8) pair_die("usage: ucc RANKS LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE");
    /* The ranks are on one host; nothing else is asked of the UCX below it. */
    setenv("UCX_TLS", "sm,self", 0);
    ranks r;
    memset(&r, 0, sizeof r);
    r.board = (board *)mmap(NULL, sizeof *r.board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r.board == MAP_FAILED) pair_die("no memory");
    const processes p = processes_start(atoi(argv[1]));
    r.rank = p.rank;
    r.nranks = p.nranks;
    r.yields = p.nranks > sysconf(_SC_NPROCESSORS_ONLN);
    begin(&r);
    if (p.rank == 0) printf("{\"peer\":\"UCC %s\"}\n", ucc_get_version_string());

    pair_library library = pair_load(argv[2]);
    processes_init(&p, &library);
    const operations_side ucc = {
        .name = "UCC",
        .context = &r,
        .all_reduce = ucc_all_reduce,
        .all_gather = ucc_all_gather,
        .reduce_scatter = ucc_reduce_scatter,
        .all_to_all = ucc_all_to_all,
        .broadcast = ucc_broadcast,
    };
    operations_ours context;
    const operations_side ours = operations_load(&library, &context);
    const operations_options options = operations_arguments(argv + 2);
    operations_run(&options, &ours, &ucc, p.rank, p.nranks);
    library.destroy(library.ours.comm);
    /* UCC's own end would need all ranks; the processes end. */
    const int code = processes_end(&p, 0);
    fflush(NULL);
    _exit(code);
}
