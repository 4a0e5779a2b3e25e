/* CUDA graphs: operations captured, replayed with other input, results compared; what can't be captured is refused. */
#include "hw.h"

enum { count = 30011, replays = 5 };

static void replay(void *graph, struct rank *r)
{
    CUDA(GraphLaunch(graph, r->stream));
    CUDA(StreamSynchronize(r->stream));
}

static void *captured(struct rank *r)
{
    void *graph = NULL, *exec = NULL;
    CUDA(StreamEndCapture(r->stream, &graph));
    CUDA(GraphInstantiate(&exec, graph, 0));
    if (exec == NULL) give_up("no graph");
    CUDA(GraphDestroy(graph));
    return exec;
}

static void expect_capturing(int where, struct rank *r)
{
    int status = -1;
    CUDA(StreamIsCapturing(r->stream, &status));
    if (status != capture_active) complain(where, "the stream's capture status is %d", status);
}

static void in_mode(int rank, int mode, int connected)
{
    struct rank r = join(rank, NULL);
    void *a = device_memory(count * 4), *b = device_memory(count * 4), *c = device_memory(count * 4), *graph;
    int round, other = 1 - rank;
    flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;

    FLAGOS(CommGetInfo(r.comm, &info));
    EXPECT(info.tier == flagosTierNative, "tier %d", info.tier);

    /* The first operation of the communicator is captured: NCCL connects its ranks inside. Where the ranks are
     * threads of one process, CUDA refuses that to one rank while another captures thread-locally. */
    if (connected) {
        expect_works(__LINE__, &r, 98);
        FLAGOS(GroupStart());
        FLAGOS(Send(a, count, flagosFloat32, other, r.comm, stream_of(&r)));
        FLAGOS(Recv(b, count, flagosFloat32, other, r.comm, stream_of(&r)));
        FLAGOS(GroupEnd());
        CUDA(StreamSynchronize(r.stream));
        meet();
    }
    CUDA(StreamBeginCapture(r.stream, mode));
    FLAGOS(AllReduce(a, b, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    FLAGOS(AllReduce(b, b, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    expect_capturing(__LINE__, &r);
    graph = captured(&r);
    for (round = 0; round < replays; round++) {
        upload(a, count, rank, round);
        replay(graph, &r);
        expect_sum(__LINE__, b, count, round, 2);
        if (round == 2) expect_works(__LINE__, &r, 99); /* an eager call between replays */
    }
    CUDA(GraphExecDestroy(graph));
    report(rank, "all_reduce", "two in a row, the second in place; %d replays with new input, an eager call between", replays);

    CUDA(StreamBeginCapture(r.stream, mode));
    FLAGOS(GroupStart());
    FLAGOS(Send(a, count, flagosFloat32, other, r.comm, stream_of(&r)));
    FLAGOS(Recv(b, count, flagosFloat32, other, r.comm, stream_of(&r)));
    FLAGOS(GroupEnd());
    expect_capturing(__LINE__, &r);
    graph = captured(&r);
    for (round = 0; round < replays; round++) {
        upload(a, count, rank, 10 + round);
        replay(graph, &r);
        expect_values(__LINE__, b, count, other, 10 + round);
    }
    CUDA(GraphExecDestroy(graph));
    report(rank, "send_recv", "grouped exchange, %d replays with new input", replays);

    /* Barrier waits, so it can't be captured; the capture goes on as if it had not been called. */
    CUDA(StreamBeginCapture(r.stream, mode));
    FLAGOS(AllReduce(a, b, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    expect_refused(__LINE__, F.Barrier(r.comm, stream_of(&r)), flagosNotSupported, "captur");
    expect_capturing(__LINE__, &r);
    FLAGOS(AllReduce(b, c, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    graph = captured(&r);
    for (round = 0; round < replays; round++) {
        upload(a, count, rank, 20 + round);
        replay(graph, &r);
        expect_sum(__LINE__, c, count, 20 + round, 2);
    }
    CUDA(GraphExecDestroy(graph));
    FLAGOS(Barrier(r.comm, stream_of(&r)));
    CUDA(StreamSynchronize(r.stream));
    report(rank, "barrier", "refused with NotSupported, the capture stayed intact: %d replays; allowed afterwards", replays);

    /* The other operations in one graph. */
    {
        enum { block = 4096 };
        void *in = device_memory(2 * block * 4), *gathered = device_memory(2 * block * 4), *scattered = device_memory(block * 4),
             *swapped = device_memory(2 * block * 4), *cast = device_memory(block * 4), *reduced = device_memory(block * 4);
        size_t counts[2], places[2], back[2], back_places[2];
        float *host = malloc(2 * block * 4);
        size_t i, wrong = 0;
        /* Rank i sends 100 + 50 i + j elements to rank j. */
        counts[0] = 100 + 50 * (size_t)rank, counts[1] = counts[0] + 1;
        places[0] = 0, places[1] = block;
        back[0] = 100 + (size_t)rank, back[1] = 150 + (size_t)rank;
        back_places[0] = 0, back_places[1] = block;
        CUDA(StreamBeginCapture(r.stream, mode));
        FLAGOS(AllGather(in, gathered, block, flagosFloat32, r.comm, stream_of(&r)));
        FLAGOS(ReduceScatter(in, scattered, block, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        FLAGOS(Broadcast(in, cast, block, flagosFloat32, 1, r.comm, stream_of(&r)));
        FLAGOS(Reduce(in, reduced, block, flagosFloat32, flagosSum, 0, r.comm, stream_of(&r)));
        FLAGOS(AlltoAllv(in, counts, places, swapped, back, back_places, flagosFloat32, r.comm, stream_of(&r)));
        graph = captured(&r);
        for (round = 30; round < 33; round++) {
            upload(in, 2 * block, rank, round);
            replay(graph, &r);
            expect_values(__LINE__, gathered, block, 0, round);
            expect_values(__LINE__, (char *)gathered + block * 4, block, 1, round);
            CUDA(Memcpy(host, scattered, block * 4, to_host));
            for (i = 0; i < block; i++) {
                size_t at = (size_t)rank * block + i;
                wrong += host[i] != value(0, at, round) + value(1, at, round);
            }
            expect_values(__LINE__, cast, block, 1, round);
            if (rank == 0) expect_sum(__LINE__, reduced, block, round, 1);
            CUDA(Memcpy(host, swapped, 2 * block * 4, to_host));
            for (i = 0; i < back[0]; i++) wrong += host[i] != value(0, (size_t)rank * block + i, round);
            for (i = 0; i < back[1]; i++) wrong += host[block + i] != value(1, (size_t)rank * block + i, round);
            EXPECT(wrong == 0, "%zu wrong values", wrong);
        }
        CUDA(GraphExecDestroy(graph));
        report(rank, "others", "all_gather, reduce_scatter, broadcast, reduce and alltoallv in one graph, 3 replays");
        CUDA(Free(in));
        CUDA(Free(gathered));
        CUDA(Free(scattered));
        CUDA(Free(swapped));
        CUDA(Free(cast));
        CUDA(Free(reduced));
        free(host);
    }
    CUDA(Free(a));
    CUDA(Free(b));
    CUDA(Free(c));
    leave(&r);
}

static void global(int rank)
{
    in_mode(rank, 0, 0);
}

static void thread_local_mode(int rank)
{
    in_mode(rank, 1, 0);
}

static void thread_local_connected(int rank)
{
    in_mode(rank, 1, 1);
}

static void relaxed(int rank)
{
    in_mode(rank, 2, 0);
}

/* The host tier can't be captured: it says so, and the capture stays as it was. */
static void host_tier(int rank)
{
    struct rank r = join(rank, NULL);
    void *a = device_memory(count * 4), *graph = NULL;
    CUDA(StreamBeginCapture(r.stream, 0));
    expect_refused(__LINE__, F.AllReduce(a, a, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)), flagosNotSupported, "captur");
    expect_capturing(__LINE__, &r);
    CUDA(StreamEndCapture(r.stream, &graph));
    if (graph != NULL) CUDA(GraphDestroy(graph));
    expect_works(__LINE__, &r, 3);
    report(rank, "refused", "NotSupported in words, the capture stayed intact, the next call is right");
    CUDA(Free(a));
    leave(&r);
}

static const struct scenario list[] = {
    {"graph.processes.global", processes, 2, 40, global, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"graph.processes.relaxed", processes, 2, 40, relaxed, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"graph.processes.thread_local", processes, 2, 40, thread_local_mode, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"graph.threads.thread_local", threads, 2, 40, thread_local_connected, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"graph.threads.relaxed", threads, 2, 40, relaxed, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"graph.host_tier", processes, 2, 40, host_tier, {"FLAGOSCOMM_TIERS=host"}, 0, 0},
};
HW_MAIN(list)
