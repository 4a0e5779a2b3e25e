/* The names of cuda_runtime.c under another prefix. A runtime's header includes its declarations (and core.h before them, in
 * which CUDA's names still are CUDA's), says
 *   FK_RUNTIME_PREFIX, FK_RUNTIME_NAME   the prefix, as a word and as text
 *   FK_HOST_ALLOC, FK_HOST_FREE          what follows it in the names of cudaHostAlloc and cudaFreeHost
 *   FK_ATTRIBUTES                        its type for cudaPointerAttributes, if it has one
 * and then includes this file. Functions that it does not declare are compiled, but hidden. */
#ifndef FK_RUNTIME_NAMES_H
#define FK_RUNTIME_NAMES_H
#undef PUBLIC
#define PUBLIC /* the declarations say what is exported */
#define FK_RPASTE2(a, b) a##b
#define FK_RPASTE(a, b) FK_RPASTE2(a, b)
#define FK_R(name) FK_RPASTE(FK_RUNTIME_PREFIX, name)

#define cudaDeviceCanAccessPeer FK_R(DeviceCanAccessPeer)
#define cudaDeviceEnablePeerAccess FK_R(DeviceEnablePeerAccess)
#define cudaDeviceGetAttribute FK_R(DeviceGetAttribute)
#define cudaDeviceGetByPCIBusId FK_R(DeviceGetByPCIBusId)
#define cudaDeviceGetP2PAttribute FK_R(DeviceGetP2PAttribute)
#define cudaDeviceGetPCIBusId FK_R(DeviceGetPCIBusId)
#define cudaDeviceReset FK_R(DeviceReset)
#define cudaDeviceSynchronize FK_R(DeviceSynchronize)
#define cudaDriverGetVersion FK_R(DriverGetVersion)
#define cudaEventCreate FK_R(EventCreate)
#define cudaEventCreateWithFlags FK_R(EventCreateWithFlags)
#define cudaEventDestroy FK_R(EventDestroy)
#define cudaEventElapsedTime FK_R(EventElapsedTime)
#define cudaEventQuery FK_R(EventQuery)
#define cudaEventRecord FK_R(EventRecord)
#define cudaEventRecordWithFlags FK_R(EventRecordWithFlags)
#define cudaEventSynchronize FK_R(EventSynchronize)
#define cudaFree FK_R(Free)
#define cudaFreeAsync FK_R(FreeAsync)
#define cudaFreeHost FK_R(FK_HOST_FREE)
#define cudaGetDevice FK_R(GetDevice)
#define cudaGetDeviceCount FK_R(GetDeviceCount)
#define cudaGetErrorName FK_R(GetErrorName)
#define cudaGetErrorString FK_R(GetErrorString)
#define cudaGetLastError FK_R(GetLastError)
#define cudaGraphDestroy FK_R(GraphDestroy)
#define cudaGraphExecDestroy FK_R(GraphExecDestroy)
#define cudaGraphInstantiate FK_R(GraphInstantiate)
#define cudaGraphLaunch FK_R(GraphLaunch)
#define cudaHostAlloc FK_R(FK_HOST_ALLOC)
#define cudaHostGetDevicePointer FK_R(HostGetDevicePointer)
#define cudaHostRegister FK_R(HostRegister)
#define cudaHostUnregister FK_R(HostUnregister)
#define cudaLaunchHostFunc FK_R(LaunchHostFunc)
#define cudaMalloc FK_R(Malloc)
#define cudaMallocAsync FK_R(MallocAsync)
#define cudaMallocHost FK_R(MallocHost)
#define cudaMallocManaged FK_R(MallocManaged)
#define cudaMemGetInfo FK_R(MemGetInfo)
#define cudaMemcpy FK_R(Memcpy)
#define cudaMemcpyAsync FK_R(MemcpyAsync)
#define cudaMemset FK_R(Memset)
#define cudaMemsetAsync FK_R(MemsetAsync)
#define cudaPeekAtLastError FK_R(PeekAtLastError)
#define cudaPointerGetAttributes FK_R(PointerGetAttributes)
#define cudaRuntimeGetVersion FK_R(RuntimeGetVersion)
#define cudaSetDevice FK_R(SetDevice)
#define cudaStreamBeginCapture FK_R(StreamBeginCapture)
#define cudaStreamCreate FK_R(StreamCreate)
#define cudaStreamCreateWithFlags FK_R(StreamCreateWithFlags)
#define cudaStreamCreateWithPriority FK_R(StreamCreateWithPriority)
#define cudaStreamDestroy FK_R(StreamDestroy)
#define cudaStreamEndCapture FK_R(StreamEndCapture)
#define cudaStreamGetDevice FK_R(StreamGetDevice)
#define cudaStreamGetFlags FK_R(StreamGetFlags)
#define cudaStreamIsCapturing FK_R(StreamIsCapturing)
#define cudaStreamQuery FK_R(StreamQuery)
#define cudaStreamSynchronize FK_R(StreamSynchronize)
#define cudaStreamWaitEvent FK_R(StreamWaitEvent)
#define cudaThreadExchangeStreamCaptureMode FK_R(ThreadExchangeStreamCaptureMode)
#ifdef FK_ATTRIBUTES
#define cudaPointerAttributes FK_ATTRIBUTES
#endif
#endif
