/* Tries the stand-in of BKCL, with the CUDA runtime's as its shim. */
#define _GNU_SOURCE
#include "abi/bkcl.h"
#include "abi/cuda.h"
#include "selftest.h"

static void *upload(const void *src, size_t n)
{
    void *d;
    OK(cudaMalloc(&d, n));
    OK(cudaMemcpy(d, src, n, cudaMemcpyHostToDevice));
    return d;
}

struct rank { int rank; BKCLUniqueId id; };

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    int rank = me->rank, peer = 1 - rank, n;
    BKCLContext_t c;
    cudaStream_t s;
    OK(cudaSetDevice(rank));
    static const int bytes[] = {0, 100, 127, 128, 1023};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        BKCLUniqueId bad = me->id;
        bad.internal[bytes[i]] ^= 1;
        EXPECT(bkcl_init_rank(&c, rank, 2, &bad), BKCL_INVALID_ARGUMENT);
    }
    if (rank)
        EXPECT(bkcl_init_rank(&c, 2, 1, &me->id), BKCL_INVALID_ARGUMENT); /* the wrong way round */
    OK(bkcl_init_rank(&c, rank, 2, &me->id));
    OK(bkcl_comm_count(c, &n));
    EXPECT(n, 2);
    OK(bkcl_comm_user_rank(c, &n));
    EXPECT(n, rank);
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));

    int64_t v[4] = {rank + 1, rank + 2, 7, 8}, w[4];
    void *d = upload(v, sizeof v), *e = upload(v, sizeof v);
#define GET() \
    do { \
        OK(cudaMemcpyAsync(w, e, sizeof w, cudaMemcpyDeviceToHost, s)); \
        OK(cudaStreamSynchronize(s)); \
    } while (0)
    static const struct { BKCLOp op; int64_t want; } ops[] = {{BKCL_ADD, 5}, {BKCL_PRODUCT, 6}, {BKCL_MAX, 3}, {BKCL_MIN, 2}};
    for (int i = 0; i < 4; i++) {
        OK(bkcl_all_reduce(c, d, e, 4, BKCL_INT64, ops[i].op, s));
        GET();
        EXPECT(w[1], ops[i].want);
    }
    OK(bkcl_broadcast(c, d, e, 2, BKCL_INT64, 1, s));
    GET();
    EXPECT(w[1], 3);
    OK(bkcl_all_gather(c, d, 1, e, BKCL_INT64, s));
    GET();
    EXPECT(w[1], 2);
    OK(bkcl_reduce_scatter(c, e, d, 1, BKCL_INT64, BKCL_MAX, s));
    OK(bkcl_reduce(c, d, d, 1, BKCL_INT64, BKCL_AVG, 0, s));
    OK(bkcl_all_to_all(c, d, 1, e, BKCL_INT64, s));
    GET();
    EXPECT(w[1], 2 + rank);
    OK(bkcl_group_start());
    OK(bkcl_send(c, d, 1, peer, BKCL_INT64, s));
    OK(bkcl_recv(c, e, 1, peer, BKCL_INT64, s));
    OK(bkcl_group_end());
    GET();

    /* 1 to oneself, 2 to the other; the counts are on the device */
    int32_t a[3] = {10 * rank, 10 * rank + 1, 10 * rank + 2}, b[3];
    void *da = upload(a, sizeof a), *db = upload(a, sizeof a);
    size_t counts[2] = {rank ? 2 : 1, rank ? 1 : 2}, displs[2] = {rank ? 1 : 0, rank ? 0 : 1};
    void *dc = upload(counts, sizeof counts), *dd = upload(displs, sizeof displs);
    OK(bkcl_all_to_all_v(c, da, dc, dd, BKCL_INT32, db, dc, dd, BKCL_INT32, s));
    EXPECT(bkcl_all_to_all_v(c, da, counts, displs, BKCL_INT32, db, counts, displs, BKCL_INT32, s), BKCL_RUNTIME_ERROR);
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(b, db, sizeof b, cudaMemcpyDeviceToHost));
    EXPECT(b[0], rank ? 10 : 0);
    EXPECT(b[2], rank ? 2 : 12);

    /* FlagCX's and NCCL's numbers are no types here, and peer and type are not exchanged */
    for (int t = 0; t < 10; t++)
        EXPECT(bkcl_all_reduce(c, d, e, 1, (BKCLDataType)t, BKCL_ADD, s), t == 3 || t == 5 || t == 8 ? 0 : BKCL_INVALID_ARGUMENT);
    EXPECT(bkcl_all_reduce(c, d, e, 1, BKCL_INT64, (BKCLOp)0, s), BKCL_INVALID_ARGUMENT);
    EXPECT(bkcl_send(c, d, 1, BKCL_INT64, (BKCLDataType)peer, s), BKCL_INVALID_ARGUMENT);
    EXPECT(bkcl_all_reduce(NULL, d, e, 1, BKCL_INT64, BKCL_ADD, s), BKCL_INVALID_ARGUMENT);
    OK(cudaStreamSynchronize(s));
    OK(bkcl_destroy_context(c));
    EXPECT(bkcl_comm_count(c, &n), BKCL_INVALID_ARGUMENT);
    return NULL;
}

int main(void)
{
    struct rank r[2] = {{.rank = 0}, {.rank = 1}};
    alarm(60);
    for (int i = 0; i < 2; i++) {
        OK(bkcl_get_unique_id(&r[0].id));
        r[1].id = r[0].id;
        two_ranks(i == 0, rank_main, r, sizeof *r);
    }
    return 0;
}
