/* Tries the stand-in of the tx runtime. */
#define _GNU_SOURCE
#include "abi/tx.h"
#include "selftest.h"

static void *fresh(void *arg)
{
    uint32_t d = 9;
    (void)arg;
    OK(txGetDevice(&d));
    OK(d);
    return NULL;
}

int main(void)
{
    uint32_t d, n;
    txStream_t a, b;
    txEvent_t e, e0;
    float ms;
    void *p, *h;
    int go = 0, v[2] = {5, 6}, w[2] = {0};
    alarm(60);
    OK(txGetDeviceCount(&n));
    EXPECT(n, 4);
    OK(txSetDevice(2));
    OK(txGetDevice(&d));
    EXPECT(d, 2);
    EXPECT(txSetDevice(4), TX_ERROR_INVALID_DEVICE);
    EXPECT(txSetDevice((uint32_t)-1), TX_ERROR_INVALID_DEVICE);
    in_thread(fresh, NULL);
    OK(txStreamCreate(&a));
    OK(txStreamCreate(&b));
    OK(txEventCreate(&e));
    OK(txEventCreate(&e0));
    OK(txEventRecord(e0, a));
    OK(txMalloc(&p, sizeof v));
    OK(txMallocHost(&h, sizeof v));
    OK(txMemcpy(p, v, sizeof v, txMemcpyHostToDevice));
    OK(txLaunchHostFunc(a, wait_for_flag, &go));
    OK(txEventRecord(e, a));
    EXPECT(txStreamWaitEvent(e, b), TX_ERROR_INVALID_HANDLE); /* the wrong way round */
    OK(txStreamWaitEvent(b, e));
    OK(txMemcpyAsync(h, p, sizeof v, txMemcpyDeviceToHost, b));
    EXPECT(txEventQuery(e), TX_ERROR_NOT_READY);
    EXPECT(txStreamQuery(b), TX_ERROR_NOT_READY);
    usleep(20000);
    go = 1;
    OK(txStreamSynchronize(b));
    EXPECT(((int *)h)[1], 6);
    OK(txEventQuery(e));
    OK(txEventSynchronize(e));
    OK(txEventElapsedTime(&ms, e0, e));
    EXPECT(ms >= 10, 1);
    OK(txMemsetAsync(p, 0, 4, a));
    OK(txDeviceSynchronize());
    OK(txMemcpy(w, p, sizeof w, txMemcpyDeviceToHost));
    EXPECT(w[0], 0);
    EXPECT(w[1], 6);
    EXPECT(txMemcpy(w, p, sizeof w, (txMemcpyKind)7), TX_ERROR_INVALID_VALUE);
    OK(txGetDeviceByPCIBusId(&d, "00000000:13:00.0"));
    EXPECT(d, 3);
    EXPECT(txGetErrorString(TX_ERROR_NOT_READY)[0], 't');
    OK(txEventDestroy(e));
    OK(txStreamDestroy(a));
    OK(txStreamDestroy(b));
    OK(txFree(p));
    OK(txFreeHost(h));
    puts("tx: ok");
    return 0;
}
