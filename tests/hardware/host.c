/* The host tier on a machine with a driver: device buffers are staged, in the order of the stream, between processes
 * that share memory and between those that take each other to be on another machine. */
#include "hw.h"

static const size_t sizes[] = {1, 1027, 1 << 20};

static void staged(int rank)
{
    struct rank r;
    flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;
    size_t s;
    int other = 1 - rank;
    if (no_way(rank)) return;
    r = join(rank, NULL);
    FLAGOS(CommGetInfo(r.comm, &info));
    EXPECT(info.tier == flagosTierHost, "tier %d", info.tier);
    EXPECT(info.streamKind == flagosStreamKindVendor, "stream kind %d", info.streamKind);
    for (s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s], i, wrong = 0;
        float *host = malloc(2 * n * 4), *back = malloc(2 * n * 4);
        void *a = device_memory(2 * n * 4), *b = device_memory(2 * n * 4);
        /* All on the stream: the copy in, the operation, the copy out. */
        fill(host, n, rank, (int)s);
        CUDA(MemcpyAsync(a, host, n * 4, to_device, r.stream));
        FLAGOS(AllReduce(a, b, n, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        CUDA(MemcpyAsync(back, b, n * 4, to_host, r.stream));
        CUDA(StreamSynchronize(r.stream));
        for (i = 0; i < n; i++) wrong += back[i] != value(0, i, (int)s) + value(1, i, (int)s);
        EXPECT(wrong == 0, "all_reduce of %zu: %zu wrong values", n, wrong);
        FLAGOS(AllReduce(b, b, n, flagosFloat32, flagosAvg, r.comm, stream_of(&r)));
        CUDA(StreamSynchronize(r.stream));
        expect_sum(__LINE__, b, n, (int)s, 1);
        FLAGOS(AllGather(a, b, n, flagosFloat32, r.comm, stream_of(&r)));
        CUDA(StreamSynchronize(r.stream));
        expect_values(__LINE__, b, n, 0, (int)s);
        expect_values(__LINE__, (char *)b + n * 4, n, 1, (int)s);
        FLAGOS(Broadcast(a, b, n, flagosFloat32, 1, r.comm, stream_of(&r)));
        CUDA(StreamSynchronize(r.stream));
        expect_values(__LINE__, b, n, 1, (int)s);
        FLAGOS(GroupStart());
        FLAGOS(Send(a, n, flagosFloat32, other, r.comm, stream_of(&r)));
        FLAGOS(Recv(b, n, flagosFloat32, other, r.comm, stream_of(&r)));
        FLAGOS(GroupEnd());
        CUDA(StreamSynchronize(r.stream));
        expect_values(__LINE__, b, n, other, (int)s);
        upload(a, 2 * n, rank, 40);
        FLAGOS(ReduceScatter(a, b, n, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        CUDA(MemcpyAsync(back, b, n * 4, to_host, r.stream));
        CUDA(StreamSynchronize(r.stream));
        for (i = 0; i < n; i++) {
            size_t at = (size_t)rank * n + i;
            wrong += back[i] != value(0, at, 40) + value(1, at, 40);
        }
        EXPECT(wrong == 0, "reduce_scatter of %zu: %zu wrong values", n, wrong);
        FLAGOS(AlltoAll(a, b, n, flagosFloat32, r.comm, stream_of(&r)));
        CUDA(MemcpyAsync(back, b, 2 * n * 4, to_host, r.stream));
        CUDA(StreamSynchronize(r.stream));
        for (i = 0; i < n; i++) {
            wrong += back[i] != value(0, (size_t)rank * n + i, 40);
            wrong += back[n + i] != value(1, (size_t)rank * n + i, 40);
        }
        EXPECT(wrong == 0, "alltoall of %zu: %zu wrong values", n, wrong);
        FLAGOS(Barrier(r.comm, stream_of(&r)));
        CUDA(StreamSynchronize(r.stream));
        CUDA(Free(a));
        CUDA(Free(b));
        free(host);
        free(back);
    }
    EXPECT(get_device() == rank, "the current device is %d", get_device());
    report(rank, "device_memory", "seven operations on device buffers of 4 B to 4 MiB, in the order of the stream");

    {
        enum { n = 4099 };
        void *memory[4], *device = device_memory(n * 4);
        static const char *const kinds[] = {"ordinary", "pinned", "managed", "flagosMemAlloc"};
        int k;
        memory[0] = malloc(n * 4);
        memory[1] = memory[2] = memory[3] = NULL;
        CUDA(HostAlloc(&memory[1], n * 4, 0));
        CUDA(MallocManaged(&memory[2], n * 4, 1));
        FLAGOS(MemAlloc(&memory[3], n * 4));
        for (k = 0; k < 4; k++) {
            if (memory[k] == NULL) continue;
            upload(device, n, rank, 60 + k);
            CUDA(Memcpy(memory[k], device, n * 4, any_way));
            /* From there to the device, and in place. */
            FLAGOS(AllReduce(memory[k], device, n, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
            CUDA(StreamSynchronize(r.stream));
            expect_sum(__LINE__, device, n, 60 + k, 1);
            FLAGOS(AllReduce(memory[k], memory[k], n, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
            CUDA(StreamSynchronize(r.stream));
            expect_sum(__LINE__, memory[k], n, 60 + k, 1);
            report(rank, kinds[k], "memory of this kind, to the device and in place");
        }
        free(memory[0]);
        CUDA(FreeHost(memory[1]));
        CUDA(Free(memory[2]));
        FLAGOS(MemFree(memory[3]));
        CUDA(Free(device));
    }
    leave(&r);
}

/* Two ranks may share a device here. */
static void shared_device(int rank)
{
    flagosUniqueId id = common_id(rank);
    struct rank r = {rank, 0, NULL, NULL};
    set_device(0);
    CUDA(StreamCreateWithFlags(&r.stream, 1));
    FLAGOS(CommInitRank(&r.comm, 2, &id, rank));
    if (r.comm == NULL) give_up("no communicator");
    text_of = r.comm;
    expect_works(__LINE__, &r, 0);
    leave(&r);
    report(rank, "all_reduce", "both ranks on device 0");
}

static const struct scenario list[] = {
    {"host.processes", processes, 2, 40, staged, {"FLAGOSCOMM_TIERS=host"}, 0, 0},
    /* With steps of 256 KiB. */
    {"host.machines", processes, 2, 60, staged, {"FLAGOSCOMM_TIERS=host", "FLAGOSCOMM_STAGING_MEMORY=1M", MACHINES}, 0, 0},
    {"host.threads", threads, 2, 40, staged, {"FLAGOSCOMM_TIERS=host"}, 0, 0},
    {"host.shared_device", processes, 1, 40, shared_device, {"FLAGOSCOMM_TIERS=host"}, 0, 0},
};
HW_MAIN(list)
