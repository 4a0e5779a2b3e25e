/*
 * PK-2: two copies of the library in one process, opened under different names, and 16 threads
 * whose first use of both is at the same moment. Each copy is an engine of its own.
 *
 * usage: two_copies LIBRARY LIBRARY
 */
#include "flagos_comm.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { threads = 16, rounds = 100 };

struct copy {
    void *library;
    flagosResult_t (*version)(int *);
    flagosResult_t (*report)(char *, size_t, size_t *);
    flagosResult_t (*count)(int *);
    flagosResult_t (*set_log)(flagosLogCallback_t, void *);
    flagosResult_t (*user_rank)(flagosComm_t, int *);
    const char *(*last)(flagosComm_t);
};

static struct copy copies[2];
static pthread_barrier_t start;

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                        \
            failures++;                                                                    \
        }                                                                                  \
    } while (0)

static int load(struct copy *copy, const char *path)
{
    copy->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (copy->library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 0;
    }
    *(void **)&copy->version = dlsym(copy->library, "flagosGetVersion");
    *(void **)&copy->report = dlsym(copy->library, "flagosGetLoadReport");
    *(void **)&copy->count = dlsym(copy->library, "flagosGetDeviceCount");
    *(void **)&copy->set_log = dlsym(copy->library, "flagosSetLogCallback");
    *(void **)&copy->user_rank = dlsym(copy->library, "flagosCommUserRank");
    *(void **)&copy->last = dlsym(copy->library, "flagosGetLastError");
    return 1;
}

static void *use(void *argument)
{
    size_t failures = 0;
    int round;
    (void)argument;
    pthread_barrier_wait(&start);
    for (round = 0; round < rounds; round++) {
        int i;
        for (i = 0; i < 2; i++) {
            const struct copy *copy = &copies[i];
            char text[64];
            size_t needed = 0;
            int number = -1;
            CHECK(copy->version(&number) == flagosSuccess);
            CHECK(number == FLAGOS_COMM_VERSION_CODE);
            CHECK(copy->report(text, sizeof text, &needed) == flagosSuccess);
            CHECK(needed > 0 && memchr(text, 0, sizeof text) != NULL);
            CHECK(copy->set_log(NULL, NULL) == flagosSuccess);
            CHECK(copy->user_rank((flagosComm_t)(size_t)0xdeadbeef, &number)
                  == flagosInvalidArgument);
            CHECK(number == 0);
            CHECK(copy->last(NULL)[0] != 0);
        }
    }
    return (void *)failures;
}

int main(int argc, char **argv)
{
    pthread_t thread[threads];
    size_t failures = 0;
    int i;
    if (argc != 3 || !load(&copies[0], argv[1]) || !load(&copies[1], argv[2])) {
        return 2;
    }
    CHECK(copies[0].version != copies[1].version);
    pthread_barrier_init(&start, NULL, threads);
    for (i = 0; i < threads; i++) {
        pthread_create(&thread[i], NULL, use, NULL);
    }
    for (i = 0; i < threads; i++) {
        void *result;
        pthread_join(thread[i], &result);
        failures += (size_t)result;
    }
    /* NODELETE: closing is harmless, the code stays. */
    dlclose(copies[0].library);
    dlclose(copies[1].library);
    i = 0;
    CHECK(copies[0].version(&i) == flagosSuccess);
    return failures != 0;
}
