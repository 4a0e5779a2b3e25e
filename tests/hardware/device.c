/* The current device: only cudaSetDevice is called outside the library, and nothing in it may remember or move it. */
#include "hw.h"

enum { count = 20011 };

/* Both the runtime and the library say this device. */
static void expect_current(int where, int device)
{
    int ours = -2, theirs = -2;
    C.GetDevice(&theirs);
    flagosResult_t result = F.GetDevice(&ours);
    if (result != flagosSuccess) complain(where, "flagosGetDevice: %d, %s", (int)result, last_text());
    if (theirs != device) complain(where, "cudaGetDevice says %d instead of %d", theirs, device);
    if (ours != device) complain(where, "flagosGetDevice says %d instead of %d", ours, device);
}

static void *fresh_thread(void *unused)
{
    (void)unused;
    expect_current(__LINE__, 0);
    set_device(1);
    expect_current(__LINE__, 1);
    return NULL;
}

static void follow(int rank)
{
    int i, number = -1, theirs = -1;
    pthread_t thread;
    expect_current(__LINE__, 0); /* nothing was set: the runtime's answer is 0 */
    for (i = 0; i < 200; i++) {
        set_device(i % 2);
        expect_current(__LINE__, i % 2);
    }
    report(rank, "set_outside", "200 changes by cudaSetDevice, each seen at once");
    set_device(1);
    pthread_create(&thread, NULL, fresh_thread, NULL);
    pthread_join(thread, NULL);
    expect_current(__LINE__, 1);
    report(rank, "per_thread", "a new thread has device 0 while this one has 1, and its change stays its own");
    FLAGOS(SetDevice(0));
    expect_current(__LINE__, 0);
    EXPECT(F.SetDevice(1000) == flagosInvalidArgument, "device 1000 was accepted");
    expect_current(__LINE__, 0);
    CUDA(GetDeviceCount(&theirs));
    FLAGOS(GetDeviceCount(&number));
    EXPECT(number == theirs, "%d devices instead of %d", number, theirs);
    report(rank, "set_and_count", "flagosSetDevice moves cudaGetDevice's answer; %d devices", number);
}

static void *worker(void *argument)
{
    struct rank *r = argument;
    text_of = r->comm;
    /* This thread never set a device: it is on 0, also where the communicator is on 1. */
    expect_current(__LINE__, 0);
    expect_works(__LINE__, r, 7);
    expect_current(__LINE__, 0);
    return NULL;
}

/* This rank's stream is done, and the other's: a copy waits for what runs on the current device. */
static void finish(struct rank *r)
{
    CUDA(StreamSynchronize(r->stream));
    meet();
}

/* Communicators stay on the device of their init, whatever is current when they are used. */
static void bound(int rank)
{
    struct rank r = join(rank, NULL);
    int device = -1, other = 1 - rank, round;
    void *a, *b;
    pthread_t thread;
    size_t counts[2] = {count / 2, count / 2}, places[2] = {0, count / 2};

    expect_current(__LINE__, rank);
    FLAGOS(CommGetDeviceNumber(r.comm, &device));
    EXPECT(device == rank, "the communicator says device %d", device);
    a = device_memory(count * 4);
    b = device_memory(count * 4);
    report(rank, "at_init", "bound to the device that was current, which stays current");

    upload(a, count, rank, 0);
    meet();
    set_device(other);
    for (round = 0; round < 3; round++) {
        FLAGOS(AllReduce(a, b, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        expect_current(__LINE__, other);
        finish(&r);
        expect_sum(__LINE__, b, count, 0, 1);
        meet();
        FLAGOS(GroupStart());
        FLAGOS(Send(a, count, flagosFloat32, other, r.comm, stream_of(&r)));
        FLAGOS(Recv(b, count, flagosFloat32, other, r.comm, stream_of(&r)));
        expect_current(__LINE__, other);
        FLAGOS(GroupEnd());
        expect_current(__LINE__, other);
        finish(&r);
        expect_values(__LINE__, b, count, other, 0);
        meet();
        FLAGOS(AlltoAllv(a, counts, places, b, counts, places, flagosFloat32, r.comm, stream_of(&r)));
        expect_current(__LINE__, other);
        finish(&r);
        if (rank == 0) { /* the first half of each rank */
            expect_values(__LINE__, b, count / 2, 0, 0);
            expect_values(__LINE__, (char *)b + count / 2 * 4, count / 2, 1, 0);
        }
        meet();
        FLAGOS(Barrier(r.comm, stream_of(&r)));
        expect_current(__LINE__, other);
        finish(&r);
    }
    FLAGOS(CommGetDeviceNumber(r.comm, &device));
    EXPECT(device == rank, "the communicator says device %d", device);
    report(rank, "other_current",
           "all_reduce, send_recv, alltoallv and barrier with the other device current: right, and it stays current");

    EXPECT(F.AllReduce(a, b, count, 99, flagosSum, r.comm, stream_of(&r)) == flagosInvalidArgument, "type 99 was accepted");
    expect_current(__LINE__, other);
    EXPECT(F.Broadcast(a, b, count, flagosFloat32, 77, r.comm, stream_of(&r)) == flagosInvalidArgument, "root 77 was accepted");
    expect_current(__LINE__, other);
    report(rank, "refused_call", "a refused call leaves the caller's device alone");

    set_device(rank);
    pthread_create(&thread, NULL, worker, &r);
    pthread_join(thread, NULL);
    expect_current(__LINE__, rank);
    report(rank, "worker_thread", "a thread that never set a device uses the communicator");

    set_device(other);
    leave(&r);
    expect_current(__LINE__, other);
    report(rank, "destroy", "destroy leaves the caller's device alone");
}

/* The device of the config decides, not the current one. */
static void configured(int rank)
{
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    flagosUniqueId id = common_id(rank);
    struct rank r = {rank, rank, NULL, NULL};
    flagosComm_t child = NULL;
    int device = -1;
    config.device = rank;
    set_device(rank);
    CUDA(StreamCreateWithFlags(&r.stream, 1));
    set_device(1 - rank);
    FLAGOS(CommInitRankConfig(&r.comm, 2, &id, rank, &config));
    if (r.comm == NULL) give_up("no communicator");
    text_of = r.comm;
    expect_current(__LINE__, 1 - rank);
    FLAGOS(CommGetDeviceNumber(r.comm, &device));
    EXPECT(device == rank, "bound to %d", device);
    FLAGOS(CommSplit(r.comm, 0, rank, &child, NULL));
    expect_current(__LINE__, 1 - rank);
    FLAGOS(CommGetDeviceNumber(child, &device));
    EXPECT(device == rank, "the child is bound to %d", device);
    set_device(rank);
    expect_works(__LINE__, &r, 5);
    set_device(1 - rank);
    text_of = NULL;
    if (child != NULL) FLAGOS(CommDestroy(child));
    leave(&r);
    expect_current(__LINE__, 1 - rank);
    report(rank, "config", "config.device binds to the other device than the current one; split keeps it; the current one stays");
}

/* One thread owns both ranks, in the order 1, 0. */
static void one_thread(int rank)
{
    flagosComm_t comm[2] = {NULL, NULL};
    int devices[2] = {1, 0}, device, i, round;
    Stream stream[2];
    void *a[2], *b[2];
    set_device(1);
    FLAGOS(CommInitAll(comm, 2, devices));
    if (comm[0] == NULL) give_up("no communicators");
    expect_current(__LINE__, 1);
    for (i = 0; i < 2; i++) {
        FLAGOS(CommGetDeviceNumber(comm[i], &device));
        EXPECT(device == devices[i], "rank %d is on device %d", i, device);
        set_device(devices[i]);
        CUDA(StreamCreateWithFlags(&stream[i], 1));
        a[i] = device_memory(count * 4);
        b[i] = device_memory(count * 4);
    }
    for (round = 0; round < 4; round++) {
        for (i = 0; i < 2; i++) upload(a[i], count, i, round);
        for (i = 0; i < 2; i++) {
            set_device(devices[i]);
            CUDA(DeviceSynchronize());
        }
        set_device(round % 2);
        FLAGOS(GroupStart());
        for (i = 0; i < 2; i++) FLAGOS(AllReduce(a[i], b[i], count, flagosFloat32, flagosSum, comm[i], (flagosStream_t)stream[i]));
        expect_current(__LINE__, round % 2);
        FLAGOS(GroupEnd());
        expect_current(__LINE__, round % 2);
        for (i = 0; i < 2; i++) {
            CUDA(StreamSynchronize(stream[i]));
            expect_sum(__LINE__, b[i], count, round, 1);
        }
    }
    for (i = 0; i < 2; i++) FLAGOS(CommDestroy(comm[i]));
    expect_current(__LINE__, 1);
    report(rank, "init_all", "CommInitAll on devices 1 and 0, grouped calls with either device current, which stays current");
}

static void guarded(int rank)
{
    struct rank r = join(rank, NULL);
    set_device(1 - rank);
    expect_works(__LINE__, &r, 1);
    expect_current(__LINE__, 1 - rank);
    leave(&r);
    report(rank, "set_and_restore", "FLAGOSCOMM_DEVICE=guard: right, and the caller's device stays");
}

static void strict(int rank)
{
    struct rank r = join(rank, NULL);
    void *a = device_memory(count * 4);
    flagosResult_t result;
    set_device(1 - rank);
    result = F.AllReduce(a, a, count, flagosFloat32, flagosSum, r.comm, stream_of(&r));
    EXPECT(result != flagosSuccess, "a call with the other device current was accepted");
    EXPECT(strcasestr(last_text(), "device") != NULL, "no word of the device in: %s", last_text());
    expect_current(__LINE__, 1 - rank);
    set_device(rank);
    expect_works(__LINE__, &r, 1);
    report(rank, "refused", "FLAGOSCOMM_DEVICE=error: refused in words: %.300s", rank == 0 ? last_text() : "");
    CUDA(Free(a));
    leave(&r);
}

static const struct scenario list[] = {
    {"device.follow", alone, 2, 30, follow, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"device.processes", processes, 2, 40, bound, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"device.threads", threads, 2, 40, bound, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"device.explicit", processes, 2, 40, configured, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"device.one_thread", alone, 2, 40, one_thread, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"device.guard", processes, 2, 40, guarded, {"FLAGOSCOMM_TIERS=native", "FLAGOSCOMM_DEVICE=guard"}, 0, 0},
    {"device.error", processes, 2, 40, strict, {"FLAGOSCOMM_TIERS=native", "FLAGOSCOMM_DEVICE=error"}, 0, 0},
};
HW_MAIN(list)
