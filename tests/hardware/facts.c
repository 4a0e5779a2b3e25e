/* What this machine has, as NAME=value lines: devices, driver, runtime, NCCL. Exit code 3: no usable device. */
#include "hw.h"

#include <limits.h>

static const char *file_of(void *symbol, char *buffer)
{
    Dl_info where;
    if (dladdr(symbol, &where) == 0 || realpath(where.dli_fname, buffer) == NULL) return "?";
    return buffer;
}

int main(void)
{
    static struct shared here;
    char buffer[PATH_MAX], text[256];
    int devices = 0, driver = 0, runtime = 0, nccl = 0, i;
    int (*init)(unsigned), (*get)(int *, int), (*name)(char *, int, int);
    void *low, *high;
    S = &here;
    scenario_name = "facts";
    high = dlopen(getenv("HW_CUDART") ? getenv("HW_CUDART") : "libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    if (high == NULL) high = dlopen("libcudart.so.12", RTLD_NOW | RTLD_LOCAL);
    if (high == NULL) high = dlopen("libcudart.so", RTLD_NOW | RTLD_LOCAL);
    if (high != NULL) {
        *(void **)&C.GetDeviceCount = dlsym(high, "cudaGetDeviceCount");
        *(void **)&C.DriverGetVersion = dlsym(high, "cudaDriverGetVersion");
        *(void **)&C.RuntimeGetVersion = dlsym(high, "cudaRuntimeGetVersion");
        C.DriverGetVersion(&driver);
        C.RuntimeGetVersion(&runtime);
        if (C.GetDeviceCount(&devices) != 0) devices = 0;
        printf("cudart=%s\n", file_of((void *)(size_t)C.GetDeviceCount, buffer));
    }
    printf("devices=%d\ncuda_driver_api=%d\ncuda_runtime=%d\n", devices, driver, runtime);
    low = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (low != NULL) {
        *(void **)&init = dlsym(low, "cuInit");
        *(void **)&get = dlsym(low, "cuDeviceGet");
        *(void **)&name = dlsym(low, "cuDeviceGetName");
        if (init(0) == 0) {
            for (i = 0; i < devices; i++) {
                int handle;
                if (get(&handle, i) == 0 && name(text, sizeof text, handle) == 0) printf("device_%d=%s\n", i, text);
            }
        }
        printf("standin=%d\n", dlsym(low, "fake_call_count") != NULL);
    }
    high = dlopen(getenv("HW_NCCL") ? getenv("HW_NCCL") : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (high != NULL) {
        *(void **)&N.GetVersion = dlsym(high, "ncclGetVersion");
        N.GetVersion(&nccl);
        printf("nccl=%s\nnccl_version=%d\n", file_of((void *)(size_t)N.GetVersion, buffer), nccl);
    }
    return devices > 0 && high != NULL ? 0 : 3;
}
