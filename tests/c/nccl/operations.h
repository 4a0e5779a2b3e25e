/*
 * Every operation of NCCL's on the ranks that one thread owns, with every value of its result checked. Who includes this says
 * how: CALL(name) is a function of NCCL's, OK(call) makes a call that has to succeed, COMPLAIN(...) notes a failure; and with
 * a struct one *: SELECT its device, PUT and GET (to, from, bytes) between host and device, SETTLE what is on its stream.
 * MEET() waits for the other ranks, where each is on its own.
 */
enum { count = 20000, most = 4 };

struct one {
    int rank, device;
    ncclComm_t comm;
    cudaStream_t stream;
    float *in, *out;      /* most * count of the device's */
    float *host;          /* as many of the host's */
    const char *lacks;    /* names of operations that the library has not, or NULL */
};

enum op { all_reduce, reduce, broadcast, bcast, all_gather, reduce_scatter, all_to_all, gather, scatter, ring, premul, ops };
static const char *const op_names[ops] = {
    "AllReduce", "Reduce", "Broadcast", "Bcast", "AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter",
    "SendRecv", "PreMulSum",
};

/* Exact in float: the same sum in any order. */
static float input(int rank, size_t i, int round)
{
    return (float)((int)((i * 7 + (size_t)rank * 131 + (size_t)round * 17) % 1009) - 500);
}

static float sum_at(size_t i, int n, int round)
{
    float sum = 0;
    int rank;
    for (rank = 0; rank < n; rank++) sum += input(rank, i, round);
    return sum;
}

static void start(const struct one *o, enum op op, int n, int root, ncclRedOp_t custom)
{
    int next = (o->rank + 1) % n, before = (o->rank + n - 1) % n;
    int is_root = o->rank == root;
    switch (op) {
    case all_reduce: OK(AllReduce(o->in, o->out, count, ncclFloat32, ncclSum, o->comm, o->stream)); break;
    case reduce: OK(Reduce(o->in, is_root ? o->out : NULL, count, ncclFloat32, ncclSum, root, o->comm, o->stream)); break;
    case broadcast: OK(Broadcast(is_root ? o->in : NULL, o->out, count, ncclFloat32, root, o->comm, o->stream)); break;
    case bcast: OK(Bcast(is_root ? o->in : o->out, count, ncclFloat32, root, o->comm, o->stream)); break;
    case all_gather: OK(AllGather(o->in, o->out, count, ncclFloat32, o->comm, o->stream)); break;
    case reduce_scatter: OK(ReduceScatter(o->in, o->out, count, ncclFloat32, ncclSum, o->comm, o->stream)); break;
    case all_to_all: OK(AlltoAll(o->in, o->out, count, ncclFloat32, o->comm, o->stream)); break;
    case gather: OK(Gather(o->in, is_root ? o->out : NULL, count, ncclFloat32, root, o->comm, o->stream)); break;
    case scatter: OK(Scatter(is_root ? o->in : NULL, o->out, count, ncclFloat32, root, o->comm, o->stream)); break;
    case ring:
        OK(GroupStart());
        OK(Send(o->in, count, ncclFloat32, next, o->comm, o->stream));
        OK(Recv(o->out, count, ncclFloat32, before, o->comm, o->stream));
        OK(GroupEnd());
        break;
    case premul: OK(AllReduce(o->in, o->out, count, ncclFloat32, custom, o->comm, o->stream)); break;
    case ops: break;
    }
}

/* What stands at an index of a rank's result; the rank has n * count elements of input() as input. */
static int expected(const struct one *o, enum op op, int n, int root, int round, size_t i, float *want)
{
    size_t block = i / count, at = i % count;
    int is_root = o->rank == root;
    switch (op) {
    case all_reduce: *want = sum_at(i, n, round); return i < count;
    case premul: *want = 2 * sum_at(i, n, round); return i < count;
    case reduce: *want = sum_at(i, n, round); return i < count && is_root;
    case broadcast: *want = input(root, i, round); return i < count;
    case bcast: *want = input(root, i, round); return i < count && !is_root;
    case all_gather: *want = input((int)block, at, round); return 1;
    case reduce_scatter: *want = sum_at((size_t)o->rank * count + at, n, round); return i < count;
    case all_to_all: *want = input((int)block, (size_t)o->rank * count + at, round); return 1;
    case gather: *want = input((int)block, at, round); return is_root;
    case scatter: *want = input(root, (size_t)o->rank * count + at, round); return i < count;
    case ring: *want = input((o->rank + n - 1) % n, i, round); return i < count;
    case ops: break;
    }
    return 0;
}

/* The input of a round on the device, and an output that no operation gives. */
static void fill_in(struct one *o, int n, int round)
{
    size_t at, all = (size_t)n * count;
    for (at = 0; at < all; at++) o->host[at] = -1e30f;
    PUT(o->out, o->host, all * sizeof(float));
    for (at = 0; at < all; at++) o->host[at] = input(o->rank, at, round);
    PUT(o->in, o->host, all * sizeof(float));
}

static void check_result(struct one *o, enum op op, int n, int root, int round)
{
    size_t at, wrong = 0, first = 0, all = (size_t)n * count;
    float want = 0;
    GET(o->host, o->out, all * sizeof(float));
    for (at = 0; at < all; at++) {
        if (expected(o, op, n, root, round, at, &want) && o->host[at] != want && wrong++ == 0) first = at;
    }
    if (wrong != 0) {
        expected(o, op, n, root, round, first, &want);
        COMPLAIN("%s: %zu values of rank %d are wrong, the first at %zu: %g instead of %g", op_names[op], wrong, o->rank, first,
                 (double)o->host[first], (double)want);
    }
}

/* Several ranks of one thread are in a group. */
static void every_operation(struct one *ones, int here, int n)
{
    int op, i;
    ncclRedOp_t custom[most] = {0};
    float two = 2;
    int has_custom = ones[0].lacks == NULL || strstr(ones[0].lacks, op_names[premul]) == NULL;
    for (i = 0; i < here && has_custom; i++) {
        OK(RedOpCreatePreMulSum(&custom[i], &two, ncclFloat32, ncclScalarHostImmediate, ones[i].comm));
    }
    for (op = 0; op < ops; op++) {
        int root = op % n, round = op + 1;
        if (ones[0].lacks != NULL && strstr(ones[0].lacks, op_names[op]) != NULL) continue;
        for (i = 0; i < here; i++) {
            SELECT(&ones[i]);
            fill_in(&ones[i], n, round);
        }
        if (here < n) MEET();
        if (here > 1) OK(GroupStart());
        for (i = 0; i < here; i++) start(&ones[i], (enum op)op, n, root, custom[i]);
        if (here > 1) OK(GroupEnd());
        for (i = 0; i < here; i++) {
            SELECT(&ones[i]);
            SETTLE(&ones[i]);
            check_result(&ones[i], (enum op)op, n, root, round);
        }
    }
    for (i = 0; i < here && has_custom; i++) OK(RedOpDestroy(custom[i], ones[i].comm));
}

static void check_place(const struct one *o, int n)
{
    int ranks = -1, rank = -1, device = -1;
    OK(CommCount(o->comm, &ranks));
    OK(CommUserRank(o->comm, &rank));
    OK(CommCuDevice(o->comm, &device));
    if (ranks != n || rank != o->rank || device != o->device) COMPLAIN("rank %d of %d on device %d", rank, ranks, device);
}

/* The config struct of some header of NCCL's, with nothing set. */
__attribute__((unused)) static ncclConfig_t config_of(size_t size, unsigned version)
{
    ncclConfig_t c;
    int *word = (int *)&c, *end = (int *)(&c + 1);
    while (word < end) *word++ = NCCL_UNDEF_INT;
    c.size = size;
    c.magic = NCCL_CONFIG_MAGIC;
    c.version = version;
    c.netName = c.commName = NULL;
    return c;
}

/* Those that have been. */
__attribute__((unused)) static const struct {
    size_t size;
    unsigned version;
} config_headers[] = {{24, 21403}, {40, 21703}, {48, 21800}, {48, 22602}, {72, 22703}, {80, 22809}, {88, 22902}, {96, 23004},
                      {96, 23007}, {112, 23102}, {120, 23203}};
enum { config_header_count = sizeof config_headers / sizeof config_headers[0] };
