/* flagos-comm against a plain ring over UCX's tagged messages in shared memory, in the same processes.
 *     ucx RANKS LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE
 *
 * UCX has no collectives. So there is what a program would first write over it: reduce-scatter and all-gather as
 * rings, all-reduce as both after another (and below some KiB everybody's data to everybody), and its messages.
 */
#include <ucp/api/ucp.h>

#include "operations.h"
#include "processes.h"

enum {
    SMALL = 16 << 10,    /* Bytes up to which an all-reduce is an exchange of everything. */
    SEGMENT = 256 << 10, /* Bytes of a message of the ring: sums are made while the next ones come. */
    ADDRESS_MOST = 4096,
};

typedef struct {
    int rank, nranks, yields;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h peers[PROCESSES_MOST];
    uint32_t operation; /* The same on all ranks: part of each tag of a collective. */
    float *scratch;
    size_t scratch_count;
    ucs_status_ptr_t *requests;
    size_t requests_room;
} ring;

/* Addresses of all ranks in memory that they share. */
typedef struct {
    int ready, connected;
    size_t length[PROCESSES_MOST];
    char address[PROCESSES_MOST][ADDRESS_MOST];
} board;

/* Collectives of one operation: who sent it, in which step, which segment. Messages of a program have the top bit. */
static uint64_t tag_of(const ring *r, int from, size_t step, size_t segment) {
    return (uint64_t)r->operation << 31 | (uint64_t)from << 24 | (uint64_t)step << 16 | segment;
}

static uint64_t message_tag(int from) { return (uint64_t)1 << 63 | (uint64_t)from; }

static ucs_status_ptr_t start_send(ring *r, int to, const void *bytes, size_t length, uint64_t tag) {
    const ucp_request_param_t param = {.op_attr_mask = 0};
    return ucp_tag_send_nbx(r->peers[to], bytes, length, tag, &param);
}

static ucs_status_ptr_t start_recv(ring *r, void *bytes, size_t length, uint64_t tag) {
    const ucp_request_param_t param = {.op_attr_mask = 0};
    return ucp_tag_recv_nbx(r->worker, bytes, length, tag, ~(uint64_t)0, &param);
}

static void finish(ring *r, ucs_status_ptr_t request) {
    if (request == NULL) return;
    if (UCS_PTR_IS_ERR(request)) pair_die("UCX: %s", ucs_status_string(UCS_PTR_STATUS(request)));
    unsigned idle = 0;
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
        if (!ucp_worker_progress(r->worker) && r->yields && ++idle > 16) sched_yield();
    ucp_request_free(request);
    if (status != UCS_OK) pair_die("UCX: %s", ucs_status_string(status));
}

static float *scratch(ring *r, size_t count) {
    if (r->scratch_count < count) {
        free(r->scratch);
        r->scratch = (float *)malloc(count * sizeof(float));
        if (!r->scratch) pair_die("no memory");
        memset(r->scratch, 0, count * sizeof(float));
        r->scratch_count = count;
    }
    return r->scratch;
}

static ucs_status_ptr_t *requests(ring *r, size_t count) {
    if (r->requests_room < count) {
        free(r->requests);
        r->requests = (ucs_status_ptr_t *)malloc(count * sizeof *r->requests);
        if (!r->requests) pair_die("no memory");
        r->requests_room = count;
    }
    return r->requests;
}

__attribute__((optimize("O3"))) static void add(float *restrict to, const float *restrict a, const float *restrict b,
                                                size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = a[i] + b[i];
}

/* Where the part of a rank begins if `count` elements are cut into one for each. */
static size_t part_start(const ring *r, size_t count, int rank) {
    return count * (size_t)rank / (size_t)r->nranks;
}

static size_t part_count(const ring *r, size_t count, int rank) {
    return part_start(r, count, rank + 1) - part_start(r, count, rank);
}

/* The rank that lies `distance` before this one. */
static int before(const ring *r, int distance) { return (r->rank + 2 * r->nranks - distance) % r->nranks; }

/* One step of a ring: `out` to the next rank while `in` comes from the one before. Each segment that has come is added
 * to `own` and the sum written to `sum`, if there is an `own`. */
static void ring_step(ring *r, size_t step, const float *out, size_t out_count, float *in, size_t in_count, const float *own,
                      float *sum) {
    const size_t segment = SEGMENT / sizeof(float);
    const size_t n_in = (in_count + segment - 1) / segment, n_out = (out_count + segment - 1) / segment;
    const int next = (r->rank + 1) % r->nranks, last = before(r, 1);
    ucs_status_ptr_t *q = requests(r, n_in + n_out);
    for (size_t i = 0; i < n_in; i++) {
        const size_t at = i * segment, n = in_count - at < segment ? in_count - at : segment;
        q[i] = start_recv(r, in + at, n * sizeof(float), tag_of(r, last, step, i));
    }
    for (size_t i = 0; i < n_out; i++) {
        const size_t at = i * segment, n = out_count - at < segment ? out_count - at : segment;
        q[n_in + i] = start_send(r, next, out + at, n * sizeof(float), tag_of(r, r->rank, step, i));
    }
    for (size_t i = 0; i < n_in; i++) {
        const size_t at = i * segment, n = in_count - at < segment ? in_count - at : segment;
        finish(r, q[i]);
        if (own) add(sum + at, in + at, own + at, n);
    }
    for (size_t i = 0; i < n_out; i++) finish(r, q[n_in + i]);
}

/* The sum of this rank's part of `count` elements, to `recv`. */
static void ring_reduce(ring *r, const float *send, float *recv, size_t count) {
    const size_t most = count / (size_t)r->nranks + 1;
    float *two = scratch(r, 2 * most);
    const float *out = send + part_start(r, count, before(r, 1));
    for (int step = 0; step < r->nranks - 1; step++) {
        const int sent = before(r, step + 1), got = before(r, step + 2);
        float *in = two + (size_t)(step & 1) * most;
        float *sum = step == r->nranks - 2 ? recv : in;
        ring_step(r, (size_t)step, out, part_count(r, count, sent), in, part_count(r, count, got),
                  send + part_start(r, count, got), sum);
        out = in;
    }
}

/* Every rank's part of `all`, of which each has its own. */
static void ring_gather(ring *r, float *all, size_t count) {
    for (int step = 0; step < r->nranks - 1; step++) {
        const int sent = before(r, step), got = before(r, step + 1);
        ring_step(r, (size_t)(r->nranks + step), all + part_start(r, count, sent), part_count(r, count, sent),
                  all + part_start(r, count, got), part_count(r, count, got), NULL, NULL);
    }
}

static void ucx_all_reduce(void *context, const float *send, float *recv, size_t count) {
    ring *r = (ring *)context;
    r->operation++;
    if (count * sizeof(float) > SMALL) {
        ring_reduce(r, send, recv + part_start(r, count, r->rank), count);
        ring_gather(r, recv, count);
        return;
    }
    const size_t n = (size_t)r->nranks;
    float *theirs = scratch(r, n * count);
    ucs_status_ptr_t *q = requests(r, 2 * n);
    for (int rank = 0; rank < r->nranks; rank++)
        q[rank] = rank == r->rank ? NULL
                                  : start_recv(r, theirs + (size_t)rank * count, count * sizeof(float), tag_of(r, rank, 0, 0));
    for (int rank = 0; rank < r->nranks; rank++)
        q[r->nranks + rank] =
            rank == r->rank ? NULL : start_send(r, rank, send, count * sizeof(float), tag_of(r, r->rank, 0, 0));
    const float *sum = send;
    for (int rank = 0; rank < r->nranks; rank++) {
        if (rank == r->rank) continue;
        finish(r, q[rank]);
        for (size_t i = 0; i < count; i++) recv[i] = sum[i] + theirs[(size_t)rank * count + i];
        sum = recv;
    }
    for (int rank = 0; rank < r->nranks; rank++) finish(r, q[r->nranks + rank]);
}

static void ucx_all_gather(void *context, const float *send, float *recv, size_t part) {
    ring *r = (ring *)context;
    r->operation++;
    memcpy(recv + (size_t)r->rank * part, send, part * sizeof(float));
    ring_gather(r, recv, part * (size_t)r->nranks);
}

static void ucx_reduce_scatter(void *context, const float *send, float *recv, size_t part) {
    ring *r = (ring *)context;
    r->operation++;
    ring_reduce(r, send, recv, part * (size_t)r->nranks);
}

static void ucx_send(void *context, const float *buffer, size_t count, int peer) {
    ring *r = (ring *)context;
    finish(r, start_send(r, peer, buffer, count * sizeof(float), message_tag(r->rank)));
}

static void ucx_recv(void *context, float *buffer, size_t count, int peer) {
    ring *r = (ring *)context;
    finish(r, start_recv(r, buffer, count * sizeof(float), message_tag(peer)));
}

static void ucx_send_window(void *context, const float *buffer, size_t count, int messages, int peer) {
    ring *r = (ring *)context;
    ucs_status_ptr_t q[OPERATIONS_WINDOW];
    for (int i = 0; i < messages; i++)
        q[i] = start_send(r, peer, buffer + (size_t)i * count, count * sizeof(float), message_tag(r->rank));
    for (int i = 0; i < messages; i++) finish(r, q[i]);
}

static void ucx_recv_window(void *context, float *buffer, size_t count, int messages, int peer) {
    ring *r = (ring *)context;
    ucs_status_ptr_t q[OPERATIONS_WINDOW];
    for (int i = 0; i < messages; i++)
        q[i] = start_recv(r, buffer + (size_t)i * count, count * sizeof(float), message_tag(peer));
    for (int i = 0; i < messages; i++) finish(r, q[i]);
}

static void ucx_check(const char *what, ucs_status_t status) {
    if (status != UCS_OK) pair_die("%s: %s", what, ucs_status_string(status));
}

static void wait_until(int *word, int value) {
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) sched_yield();
}

static void ring_connect(ring *r, board *b) {
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_TAG,
        .estimated_num_eps = (size_t)r->nranks,
    };
    ucx_check("ucp_init", ucp_init(&params, NULL, &r->context));
    const ucp_worker_params_t worker = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucx_check("ucp_worker_create", ucp_worker_create(r->context, &worker, &r->worker));
    ucp_address_t *address;
    size_t length;
    ucx_check("ucp_worker_get_address", ucp_worker_get_address(r->worker, &address, &length));
    if (length > ADDRESS_MOST) pair_die("UCX: an address of %zu bytes", length);
    memcpy(b->address[r->rank], address, length);
    ucp_worker_release_address(r->worker, address);
    __atomic_add_fetch(&b->ready, 1, __ATOMIC_ACQ_REL);
    wait_until(&b->ready, r->nranks);
    for (int rank = 0; rank < r->nranks; rank++) {
        if (rank == r->rank) continue;
        const ucp_ep_params_t peer = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
            .address = (const ucp_address_t *)(const void *)b->address[rank],
        };
        ucx_check("ucp_ep_create", ucp_ep_create(r->worker, &peer, &r->peers[rank]));
    }
    /* The last moves UCX until every rank has reached every other one. */
    float send[2] = {1, 1}, recv[2];
    ucx_all_reduce(r, send, recv, 2);
}

int main(int argc, char **argv) {
    if (argc != 8) pair_die("usage: ucx RANKS LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE");
    /* The ranks are on one host; nothing else is asked of UCX. */
    setenv("UCX_TLS", "sm,self", 0);
    board *b = (board *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) pair_die("no memory");
    const processes p = processes_start(atoi(argv[1]));
    ring r;
    memset(&r, 0, sizeof r);
    r.rank = p.rank;
    r.nranks = p.nranks;
    r.yields = p.nranks > sysconf(_SC_NPROCESSORS_ONLN);
    ring_connect(&r, b);
    if (p.rank == 0) printf("{\"peer\":\"ring over UCX %s\"}\n", ucp_get_version_string());

    pair_library library = pair_load(argv[2]);
    processes_init(&p, &library);
    const operations_side ucx = {
        .name = "ring over UCX",
        .context = &r,
        .all_reduce = ucx_all_reduce,
        .all_gather = ucx_all_gather,
        .reduce_scatter = ucx_reduce_scatter,
        .send = ucx_send,
        .recv = ucx_recv,
        .send_window = ucx_send_window,
        .recv_window = ucx_recv_window,
    };
    operations_ours context;
    const operations_side ours = operations_load(&library, &context);
    const operations_options options = operations_arguments(argv + 2);
    operations_run(&options, &ours, &ucx, p.rank, p.nranks);
    library.destroy(library.ours.comm);
    /* UCX's own end would need all ranks; the processes end. */
    const int code = processes_end(&p, 0);
    fflush(NULL);
    _exit(code);
}
