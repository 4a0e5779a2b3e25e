/*
 * PK-3: makes every entry of a debug library panic, one after the other. Each must return
 * InternalError with the panic's text, and the next call must work.
 *
 * usage: panics LIBRARY PREFIX FUNCTION...    PREFIX of the library's names: flagos, flagcx
 */
#include "flagos_comm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Enough zeros for any entry; its arguments are not looked at before the panic. */
typedef size_t (*entry)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);

static void *library;

static void *symbol(const char *prefix, const char *suffix)
{
    char name[128];
    void *address;
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    address = dlsym(library, name);
    if (address == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return address;
}

int main(int argc, char **argv)
{
    flagosResult_t (*version)(int *);
    const char *(*last)(flagosComm_t);
    int failures = 0;
    int i;

    if (argc < 4) {
        return 2;
    }
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&version = symbol(argv[2], "GetVersion");
    *(void **)&last = symbol(argv[2], "GetLastError");

    for (i = 3; i < argc; i++) {
        const char *name = argv[i];
        const char *text;
        size_t result;
        int number = 0;
        entry call;
        int good;
        *(void **)&call = symbol(name, "");

        setenv("FLAGOSCOMM_TEST_PANIC", name, 1);
        result = call(0, 0, 0, 0, 0, 0, 0, 0, 0);
        unsetenv("FLAGOSCOMM_TEST_PANIC");

        if (strstr(name, "GetErrorString") != NULL || strstr(name, "GetLastError") != NULL) {
            good = result != 0 && strcmp((const char *)result, "internal error") == 0;
        } else if (strstr(name, "DataTypeSize") != NULL) {
            good = result == 0;
        } else {
            good = (int32_t)result == flagosInternalError;
        }
        if (!good) {
            fprintf(stderr, "%s returned %d\n", name, (int)result);
            failures++;
        }
        text = last(NULL);
        if (strstr(text, name) == NULL || strstr(text, "panic") == NULL) {
            fprintf(stderr, "%s: the text of the error is \"%s\"\n", name, text);
            failures++;
        }
        if (version(&number) != flagosSuccess || number <= 0) {
            fprintf(stderr, "after %s panicked, GetVersion does not work\n", name);
            failures++;
        }
    }
    return failures != 0;
}
