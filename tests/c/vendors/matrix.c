/* The numeric matrix: every operation, data type, operator, root and count, in place and out of place, on a stream of its own and
 * on the default stream, alone and in groups, with device memory. Every byte of the buffers is compared with a reference. */
#include "vendors.h"

enum { ALLREDUCE, REDUCE, REDUCESCATTER, BROADCAST, ALLGATHER, GATHER, SCATTER, ALLTOALL, ALLTOALLV, SEND, SELF, KINDS };
static const char *const kind_names[] = {
    "AllReduce", "Reduce", "ReduceScatter", "Broadcast", "AllGather", "Gather", "Scatter", "AlltoAll", "AlltoAllv", "Send", "Self",
};
enum { COUNTS = 4, MAX_RANKS = 4, REGION = 40 << 10, TOTAL = COUNTS * REGION, GAP = 64 };
static const size_t counts[COUNTS] = {0, 1, 17, 1000};

static flagosComm_t comm;
static int rank, n;
/* On the device, what was put there, what is expected, and whether a byte of it is defined. */
static char *device_src, *device_dst, src[TOTAL], dst[TOTAL], want[TOTAL], got[TOTAL];
static bool defined[TOTAL];

/* One case. */
struct what { int kind, dtype, op, root; bool in_place; };

static bool reducing(int kind) { return kind <= REDUCESCATTER; }

/* ---- elements ---- */

static bool floating(int dtype) { return dtype >= flagosFloat16; }
static bool is_signed(int dtype) { return dtype == flagosInt8 || dtype == flagosInt32 || dtype == flagosInt64; }

/* A number that the format holds exactly, with so many bits of exponent and mantissa. */
static uint64_t encode(double v, int exponent, int mantissa)
{
    uint64_t bits;
    memcpy(&bits, &v, 8);
    uint64_t sign = bits >> 63, e = (bits >> 52 & 2047) - 1023 + ((1u << (exponent - 1)) - 1);
    return sign << (exponent + mantissa) | e << mantissa | (bits & ((1ull << 52) - 1)) >> (52 - mantissa);
}

static uint64_t floating_bits(int dtype, double v)
{
    switch (dtype) {
    case flagosFloat16: return encode(v, 5, 10);
    case flagosFloat32: return encode(v, 8, 23);
    case flagosFloat64: return encode(v, 11, 52);
    case flagosBfloat16: return encode(v, 8, 7);
    case flagosFloat8e4m3: return encode(v, 4, 3);
    default: return encode(v, 5, 2);
    }
}

/* What rank r contributes at element i to a reduction: small enough to be exact in every type, in any order. Every fifth is
 * negative, or huge where there is no sign, so that a type taken for another one of its size is seen. */
static int64_t contribution(int r, size_t i, int dtype, int op)
{
    int64_t v = ((r + (int64_t)i) % n + 1) * (1 + (int64_t)(i & 1));
    if (i % 5)
        return v;
    if (floating(dtype) || is_signed(dtype))
        return -v;
    return op == flagosAvg ? v : ~v;
}

/* As the type keeps it. */
static int64_t kept(uint64_t v, int dtype)
{
    switch (dtype) {
    case flagosInt8: return (int8_t)v;
    case flagosUint8: return (uint8_t)v;
    case flagosInt32: return (int32_t)v;
    case flagosUint32: return (uint32_t)v;
    default: return (int64_t)v;
    }
}

static bool less(int64_t a, int64_t b, int dtype) { return dtype == flagosUint64 ? (uint64_t)a < (uint64_t)b : a < b; }

static uint64_t reduced(size_t i, int dtype, int op)
{
    int64_t all = kept((uint64_t)contribution(0, i, dtype, op), dtype);
    for (int r = 1; r < n; r++) {
        int64_t v = kept((uint64_t)contribution(r, i, dtype, op), dtype);
        switch (op) {
        case flagosProd: all = kept((uint64_t)all * (uint64_t)v, dtype); break;
        case flagosMax: all = less(all, v, dtype) ? v : all; break;
        case flagosMin: all = less(v, all, dtype) ? v : all; break;
        default: all = kept((uint64_t)all + (uint64_t)v, dtype); break;
        }
    }
    if (floating(dtype))
        return floating_bits(dtype, op == flagosAvg ? (double)all / n : (double)all);
    return (uint64_t)(op == flagosAvg ? all / n : all);
}

static uint64_t given(int r, size_t i, int dtype, int op)
{
    int64_t v = contribution(r, i, dtype, op);
    return floating(dtype) ? floating_bits(dtype, (double)v) : (uint64_t)v;
}

static void put_bits(char *at, size_t i, int dtype, uint64_t bits)
{
    size_t size = flagosDataTypeSize(dtype);
    memcpy(at + i * size, &bits, size); /* the low bytes come first here */
}

/* Byte b of what rank r has for rank to: moved, never looked at. */
static char moved(int r, int to, size_t b) { return (char)(37 * r + 101 * to + 7 * b + b / 251 + 1); }

/* ---- layout ---- */

/* Elements from r to `to` by AlltoAllv; their places have gaps, and those of the receiver are in reverse order. */
static size_t amount(int r, int to, size_t count) { return count ? count - (size_t)((r + 2 * to) % 2) : 0; }
static size_t sent_at(int to, size_t count) { return (size_t)to * (count + 1); }
static size_t received_at(int from, size_t count) { return (size_t)(n - 1 - from) * (count + 1); }

static void expect(char *base, size_t at, size_t bytes, int from, int to, size_t first)
{
    for (size_t b = 0; b < bytes; b++)
        want[base - dst + (ptrdiff_t)(at + b)] = moved(from, to, first + b);
}

static void undefined(const char *base, size_t at, size_t bytes) { memset(&defined[base - dst + (ptrdiff_t)at], 0, bytes); }

/* Writes operands and expectation of one count. */
static void prepare(const struct what *w, int c)
{
    size_t count = counts[c], size = flagosDataTypeSize(w->dtype), block = count * size;
    char *s = src + c * REGION + GAP, *d = dst + c * REGION + GAP, *in = w->in_place ? d : s;
    char *result = want + c * REGION + GAP;
    bool root = rank == w->root;
    size_t own = (size_t)rank * block;
    switch (w->kind) {
    case ALLREDUCE: case REDUCE:
        for (size_t i = 0; i < count; i++)
            put_bits(in, i, w->dtype, given(rank, i, w->dtype, w->op));
        break;
    case REDUCESCATTER:
        for (size_t i = 0; i < count * (size_t)n; i++)
            put_bits(in, i, w->dtype, given(rank, i, w->dtype, w->op));
        break;
    case BROADCAST:
        for (size_t b = 0; root && b < block; b++)
            in[b] = moved(rank, 0, b);
        break;
    case ALLGATHER: case GATHER:
        if (w->in_place && (w->kind == ALLGATHER || root))
            in += own;
        else
            in = s;
        for (size_t b = 0; b < block; b++)
            in[b] = moved(rank, 0, b);
        break;
    case SCATTER:
        if (!root)
            break;
        /* fall through */
    case ALLTOALL: case SEND: case SELF:
        for (int to = 0; to < n; to++)
            for (size_t b = 0; b < block; b++)
                in[(size_t)to * block + b] = moved(rank, to, b);
        break;
    default:
        for (int to = 0; to < n; to++)
            for (size_t b = 0; b < amount(rank, to, count) * size; b++)
                s[sent_at(to, count) * size + b] = moved(rank, to, b);
    }
    memcpy(want + c * REGION, dst + c * REGION, REGION);
    switch (w->kind) {
    case ALLREDUCE:
        for (size_t i = 0; i < count; i++)
            put_bits(result, i, w->dtype, reduced(i, w->dtype, w->op));
        break;
    case REDUCE:
        for (size_t i = 0; root && i < count; i++)
            put_bits(result, i, w->dtype, reduced(i, w->dtype, w->op));
        if (!root && w->in_place) /* the operand is there */
            undefined(d, 0, block);
        break;
    case REDUCESCATTER:
        if (w->in_place)
            undefined(d, 0, block * (size_t)n);
        for (size_t i = 0; i < count; i++)
            put_bits(result + (w->in_place ? own : 0), i, w->dtype, reduced((size_t)rank * count + i, w->dtype, w->op));
        if (w->in_place)
            memset(&defined[d - dst + (ptrdiff_t)own], 1, block);
        break;
    case BROADCAST: expect(d, 0, block, w->root, 0, 0); break;
    case ALLGATHER: case GATHER:
        for (int r = 0; (w->kind == ALLGATHER || root) && r < n; r++)
            expect(d, (size_t)r * block, block, r, 0, 0);
        break;
    case SCATTER: expect(d, root && w->in_place ? own : 0, block, w->root, rank, 0); break;
    case ALLTOALL:
        for (int r = 0; r < n; r++)
            expect(d, (size_t)r * block, block, r, rank, 0);
        break;
    case ALLTOALLV:
        for (int r = 0; r < n; r++)
            expect(d, received_at(r, count) * size, amount(r, rank, count) * size, r, rank, 0);
        break;
    case SEND:
        if (rank == (w->root + 1) % n)
            expect(d, 0, block, w->root, rank, 0);
        break;
    default: /* a ring, and to itself */
        expect(d, 0, block, (rank + n - 1) % n, rank, 0);
        expect(d, block, block, rank, rank, 0);
    }
}

/* Makes the call; with the first error of several. */
static int issue(const struct what *w, int c, flagosStream_t stream)
{
    size_t count = counts[c], block = count * flagosDataTypeSize(w->dtype), own = (size_t)rank * block;
    char *s = device_src + c * REGION + GAP, *d = device_dst + c * REGION + GAP, *in = w->in_place ? d : s;
    bool root = rank == w->root;
    size_t sc[MAX_RANKS], sd[MAX_RANKS], rc[MAX_RANKS], rd[MAX_RANKS];
    int first = 0, t = w->dtype, next = (rank + 1) % n, before = (rank + n - 1) % n;
    switch (w->kind) {
    case ALLREDUCE: return flagosAllReduce(in, d, count, t, w->op, comm, stream);
    case REDUCE: return flagosReduce(in, root ? d : NULL, count, t, w->op, w->root, comm, stream);
    case REDUCESCATTER: return flagosReduceScatter(in, w->in_place ? d + own : d, count, t, w->op, comm, stream);
    case BROADCAST: return flagosBroadcast(root ? in : w->in_place ? d : NULL, d, count, t, w->root, comm, stream);
    case ALLGATHER: return flagosAllGather(w->in_place ? d + own : s, d, count, t, comm, stream);
    case GATHER: return flagosGather(root && w->in_place ? d + own : s, root ? d : NULL, count, t, w->root, comm, stream);
    case SCATTER: return flagosScatter(root ? in : NULL, root && w->in_place ? d + own : d, count, t, w->root, comm, stream);
    case ALLTOALL: return flagosAlltoAll(s, d, count, t, comm, stream);
    case ALLTOALLV:
        for (int r = 0; r < n; r++) {
            sc[r] = amount(rank, r, count);
            sd[r] = sent_at(r, count);
            rc[r] = amount(r, rank, count);
            rd[r] = received_at(r, count);
        }
        return flagosAlltoAllv(s, sc, sd, d, rc, rd, t, comm, stream);
    case SEND: /* alone, from the root to the next one */
        if (root)
            return flagosSend(s + (size_t)next * block, count, t, next, comm, stream);
        return rank == (w->root + 1) % n ? flagosRecv(d, count, t, w->root, comm, stream) : 0;
    default:
        OK(flagosGroupStart());
        first = flagosSend(s + (size_t)next * block, count, t, next, comm, stream);
        flagosRecv(d + block, count, t, rank, comm, stream);
        flagosSend(s + own, count, t, rank, comm, stream);
        flagosRecv(d, count, t, before, comm, stream);
        return flagosGroupEnd() | (first == flagosSuccess ? 0 : first);
    }
}

static void clean(void)
{
    memset(src, 0x33, TOTAL);
    memset(dst, 0x5a, TOTAL);
    memset(defined, 1, TOTAL);
}

static void compare(const struct what *w, int c, flagosStream_t stream)
{
    copy_out(got + c * REGION, device_dst + c * REGION, REGION, stream);
    for (int b = c * REGION; b < (c + 1) * REGION; b++)
        if (defined[b] && got[b] != want[b])
            FAIL("rank %d of %d: %s of %zu, type %d, op %d, root %d%s: byte %d is %02x, not %02x", rank, n, kind_names[w->kind],
                 counts[c], w->dtype, w->op, w->root, w->in_place ? " in place" : "", b - c * REGION - GAP, got[b] & 255, want[b] & 255);
}

static bool supported(const struct what *w)
{
    if (reducing(w->kind))
        return reduces(w->dtype, w->op, n);
    return moves(w->dtype, w->kind == BROADCAST || w->kind == ALLGATHER);
}

/* One case with all counts; what the vendor lacks is refused and does not reach it. */
static void try(const struct what *w, flagosStream_t stream, int first, int last)
{
    clean();
    if (w->kind == SEND && rank != w->root && rank != (w->root + 1) % n)
        return;
    if (!supported(w)) {
        long before = vendor_calls();
        int result = issue(w, 2, stream);
        if (result != flagosNotSupported)
            FAIL("%s of type %d, op %d gave %d: %s", kind_names[w->kind], w->dtype, w->op, result, ERROR());
        CHECK(*ERROR());
        if (w->kind != SELF) /* a group that is open is made to fail by a call */
            EQUAL(vendor_calls(), before);
        return;
    }
    for (int c = first; c <= last; c++)
        prepare(w, c);
    copy_in(device_src + first * REGION, src + first * REGION, (size_t)(last - first + 1) * REGION, stream);
    copy_in(device_dst + first * REGION, dst + first * REGION, (size_t)(last - first + 1) * REGION, stream);
    for (int c = first; c <= last; c++) {
        int result = issue(w, c, stream);
        if (result)
            FAIL("%s of %zu, type %d, op %d, root %d%s gave %d: %s", kind_names[w->kind], counts[c], w->dtype, w->op, w->root,
                 w->in_place ? " in place" : "", result, ERROR());
    }
    for (int c = first; c <= last; c++)
        compare(w, c, stream);
}

static bool rooted(int kind) { return kind == REDUCE || kind == BROADCAST || kind == GATHER || kind == SCATTER || kind == SEND; }

static void all(flagosStream_t stream, int first, int last, int dtypes, int place_from)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int dtype = 0; dtype < DTYPES; dtype++)
            for (int op = 0; op < (reducing(kind) ? REDOPS : 1); op++)
                for (int root = 0; root < (rooted(kind) ? n : 1); root++)
                    for (int in_place = place_from; in_place < 2; in_place++) {
                        struct what w = {kind, dtype, op, root, in_place};
                        if ((in_place && kind >= ALLTOALL) || (kind == SEND && n == 1) || !(dtypes >> dtype & 1))
                            continue;
                        try(&w, stream, first, last);
                    }
}

/* Collectives of several kinds and messages, in one group. */
static void grouped(flagosStream_t stream)
{
    static const int together_[][COUNTS] = {
        {ALLREDUCE, BROADCAST, ALLGATHER, SELF}, {SELF, SELF, REDUCESCATTER, REDUCE}, {GATHER, SCATTER, ALLTOALL, ALLTOALLV},
        {ALLREDUCE, ALLREDUCE, ALLREDUCE, ALLREDUCE}, {ALLGATHER, GATHER, ALLREDUCE, SCATTER},
    };
    for (size_t g = 0; g < sizeof together_ / sizeof *together_; g++)
        for (int root = 0; root < n; root++) {
            struct what w[COUNTS];
            clean();
            for (int c = 0; c < COUNTS; c++) {
                w[c] = (struct what){together_[g][c], c % 2 ? flagosInt32 : flagosFloat32, flagosSum, root, false};
                prepare(&w[c], c);
            }
            copy_in(device_src, src, TOTAL, stream);
            copy_in(device_dst, dst, TOTAL, stream);
            OK(flagosGroupStart());
            for (int c = 0; c < COUNTS; c++)
                OK(issue(&w[c], c, stream));
            OK(flagosGroupEnd());
            for (int c = 0; c < COUNTS; c++)
                compare(&w[c], c, stream);
        }
}

static void matrix(void)
{
    comm = join_all(0);
    rank = my_rank;
    n = n_ranks;
    device_src = device_memory(TOTAL);
    device_dst = device_memory(TOTAL);
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    all(stream, 0, COUNTS - 1, (1 << DTYPES) - 1, 0);
    grouped(stream);
    OK(flagosBarrier(comm, stream));
    OK(flagosStreamSynchronize(stream));
    /* Blocks that the library would overwrite before it reads them. */
    if (n > 1)
        IS(flagosNotSupported, flagosAlltoAll(device_src, device_src, 17, flagosFloat32, comm, stream));
    if (has_null_stream()) {
        all(NULL, 2, 2, 1 << flagosFloat32 | 1 << flagosInt8, 0);
        OK(flagosBarrier(comm, NULL));
        OK(flagosStreamSynchronize(NULL));
    } else {
        IS(flagosInvalidArgument, flagosAllReduce(device_src, device_dst, 17, flagosFloat32, flagosSum, comm, NULL));
        SAYS(ERROR(), "stream is NULL");
    }
    OK(flagosStreamDestroy(stream));
    OK(flagosMemFree(device_src));
    OK(flagosMemFree(device_dst));
    OK(flagosCommDestroy(comm));
}

/* Each pair of type and operator once, between marks, for the test to read the numbers that the library got. */
static void maps(void)
{
    char name[64];
    comm = join_all(0);
    rank = my_rank;
    n = n_ranks;
    device_src = device_memory(TOTAL);
    device_dst = device_memory(TOTAL);
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    for (int kind = 0; kind < KINDS; kind++)
        for (int dtype = 0; dtype < DTYPES; dtype++)
            for (int op = 0; op < (reducing(kind) ? REDOPS : 1); op++) {
                struct what w = {kind, dtype, op, 0, false};
                if (kind == SEND && rank > 1)
                    continue;
                snprintf(name, sizeof name, "%s %d %d", kind_names[kind], dtype, op);
                mark(name);
                int result = issue(&w, 1, stream);
                mark("end");
                if (result && result != flagosNotSupported)
                    FAIL("%s gave %d: %s", name, result, ERROR());
                OK(flagosStreamSynchronize(stream));
            }
    OK(flagosCommDestroy(comm));
}

/* The codes that the collectives fail with, as the library is told to fail, in the order of this list. */
static void results(void)
{
    static const int kinds[] = {ALLREDUCE, REDUCE, REDUCESCATTER, BROADCAST, ALLGATHER};
    n = 1;
    OK(flagosSetDevice(0));
    device_src = device_memory(TOTAL);
    device_dst = device_memory(TOTAL);
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    for (int i = 0; i < 5; i++) {
        comm = join_all(i); /* most codes end it */
        struct what w = {kinds[i], flagosInt32, flagosSum, 0, true};
        int result = issue(&w, 1, stream);
        printf("%s: %d\n", kind_names[kinds[i]], result);
        printf("text %s: %s\n", kind_names[kinds[i]], result ? ERROR() : "");
        OK(flagosCommAbort(comm));
    }
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {{"matrix", matrix}, {"maps", maps}, {"results", results}, {0, 0}};
    return scenarios(argc, argv, list);
}
