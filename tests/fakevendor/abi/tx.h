/* Minimal declarations of the tx runtime's ABI (Tsingmicro): only what the stand-in implements. */
#ifndef FAKE_ABI_TX_H
#define FAKE_ABI_TX_H
#include <stddef.h>
#include <stdint.h>

typedef void *txStream_t;
typedef void *txEvent_t;
typedef void (*txHostFn_t)(void *);

/* The vendor's numbers are not known (0 is presumed): these are the stand-in's own, and no function tells their names. */
typedef enum {
    TX_SUCCESS = 0,
    TX_ERROR_INVALID_VALUE = 71,
    TX_ERROR_NOT_READY = 73,
    TX_ERROR_OUT_OF_MEMORY = 77,
    TX_ERROR_INVALID_DEVICE = 79,
    TX_ERROR_INVALID_HANDLE = 83,
    TX_ERROR_UNKNOWN = 89
} txError_t;

/* The numbers are unconfirmed. */
typedef enum {
    txMemcpyHostToHost = 0, txMemcpyHostToDevice = 1, txMemcpyDeviceToHost = 2, txMemcpyDeviceToDevice = 3
} txMemcpyKind;

txError_t txGetDevice(uint32_t *device);
txError_t txSetDevice(uint32_t device);
txError_t txGetDeviceCount(uint32_t *count);
txError_t txDeviceSynchronize(void);
txError_t txStreamCreate(txStream_t *stream);
txError_t txStreamDestroy(txStream_t stream);
txError_t txStreamSynchronize(txStream_t stream);
txError_t txStreamQuery(txStream_t stream);
txError_t txStreamWaitEvent(txStream_t stream, txEvent_t event);
txError_t txEventCreate(txEvent_t *event);
txError_t txEventDestroy(txEvent_t event);
txError_t txEventRecord(txEvent_t event, txStream_t stream);
txError_t txEventSynchronize(txEvent_t event);
txError_t txEventQuery(txEvent_t event);
txError_t txEventElapsedTime(float *ms, txEvent_t start, txEvent_t end);
txError_t txMalloc(void **ptr, uint64_t size);
txError_t txMallocHost(void **ptr, uint64_t size);
txError_t txFree(void *ptr);
txError_t txFreeHost(void *ptr);
txError_t txMemcpy(void *dst, const void *src, uint64_t n, txMemcpyKind kind);
txError_t txMemcpyAsync(void *dst, const void *src, uint64_t n, txMemcpyKind kind, txStream_t stream);
txError_t txMemset(void *ptr, int value, uint64_t n);
txError_t txMemsetAsync(void *ptr, int value, uint64_t n, txStream_t stream);
const char *txGetErrorString(txError_t code);
txError_t txGetDeviceByPCIBusId(uint32_t *device, const char *bus_id);
txError_t txLaunchHostFunc(txStream_t stream, txHostFn_t fn, void *arg);
#endif
