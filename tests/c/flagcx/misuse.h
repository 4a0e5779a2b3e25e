/*
 * What the programs share that call every function of FlagCX's ABI with bad arguments. Before it is included,
 * LAST_ERROR is the expression that gives the calling thread's last text, and COMM the type of a communicator.
 */
#ifndef MISUSE_H
#define MISUSE_H
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define FAIL(...)                                                                          \
    do {                                                                                   \
        fprintf(stderr, "line %d: ", __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                      \
        fprintf(stderr, "\n");                                                             \
        failures++;                                                                        \
    } while (0)
#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            FAIL("%s", #condition);                                                        \
        }                                                                                  \
    } while (0)
#define GIVES(expected, call)                                                              \
    do {                                                                                   \
        int result_ = (int)(call);                                                         \
        if (result_ != (int)(expected)) {                                                  \
            FAIL("%s returned %d, not %d: %s", #call, result_, (int)(expected), LAST_ERROR); \
        } else if (result_ != flagcxSuccess && LAST_ERROR[0] == 0) {                       \
            FAIL("%s failed without a text", #call);                                       \
        }                                                                                  \
    } while (0)
#define OK(call) GIVES(flagcxSuccess, call)
#define BAD(call) GIVES(flagcxInvalidArgument, call)

_Static_assert(sizeof(flagcxResult_t) == 4 && sizeof(flagcxDataType_t) == 4 && sizeof(flagcxRedOp_t) == 4 &&
                   sizeof(flagcxMemcpyType_t) == 4 && sizeof(flagcxMemType_t) == 4 && sizeof(flagcxEventType_t) == 4 &&
                   sizeof(flagcxMemAllocator_t) == 4,
               "the library takes 32 bits");

/*
 * The table. An argument of every function is an integer or a pointer, so each is called through one type with all
 * its arguments as machine words. The letters say what an argument is:
 *
 *   c  communicator   s  stream   k  another handle, junk   b  buffer   A  array
 *   d  data type   o  operator   r  root or peer   n  count or number   a  allocator
 *   p  out: pointer   w  in and out: window   i  out: 32 bits   q  out: 64 bits
 */
typedef size_t (*entry)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);

struct function {
    const char *name;
    entry call;
    const char *kinds;
};

#define FUNCTION(name, kinds) { #name, (entry)(void (*)(void))name, kinds }

static struct {
    void *pointer;
    int number;
    uint64_t large;
} out;

static size_t array[32];
static double buffer[32], other_buffer[32];
static flagcxStream_t good_stream;
static COMM good_comm;

static size_t value(char kind)
{
    switch (kind) {
    case 's': return (size_t)good_stream;
    case 'k': return 0xdead0;
    case 'b': return (size_t)buffer;
    case 'A': return (size_t)array;
    case 'n': return 1;
    case 'd': return flagcxFloat64;
    case 'p': case 'w': return (size_t)&out.pointer;
    case 'i': return (size_t)&out.number;
    case 'q': return (size_t)&out.large;
    case 'c': return (size_t)good_comm;
    default: return 0; /* o sum, r 0, a flagcxMemCCL */
    }
}

/* Calls with the argument of this kind replaced; `at` counts arguments of the kind from 0. */
static int call(const struct function *f, char kind, size_t bad, int *had)
{
    size_t v[9] = { 0 };
    int i, buffers = 0;
    int result;
    *had = 0;
    out.pointer = strchr(f->kinds, 'w') ? NULL : (void *)0x55;
    out.number = 0x55;
    out.large = 0x55;
    for (i = 0; f->kinds[i] != 0; i++) {
        v[i] = value(f->kinds[i]);
        if (f->kinds[i] == 'b' && buffers++ == 1) {
            v[i] = (size_t)other_buffer;
        }
        if (f->kinds[i] == kind) {
            v[i] = bad;
            *had = 1;
        }
    }
    if (!*had) {
        return 0;
    }
    result = (int)f->call(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]);
    if (result != 0) {
        if (LAST_ERROR[0] == 0) {
            FAIL("%s failed without a text", f->name);
        }
        if (strchr(f->kinds, 'p') && kind != 'p' && out.pointer != NULL) {
            FAIL("%s left its pointer at %p", f->name, out.pointer);
        }
        if (strchr(f->kinds, 'i') && kind != 'i' && out.number != 0) {
            FAIL("%s left its number at %d", f->name, out.number);
        }
        if (strchr(f->kinds, 'q') && kind != 'q' && out.large != 0) {
            FAIL("%s left its number at %llu", f->name, (unsigned long long)out.large);
        }
    }
    return result;
}

static void refuse(const struct function *f, char kind, size_t bad, int code)
{
    int had;
    int result = call(f, kind, bad, &had);
    if (had && result != code) {
        FAIL("%s with %c = %#zx returned %d, not %d: %s", f->name, kind, bad, result, code, LAST_ERROR);
    }
}

static int is(const struct function *f, const char *name)
{
    return strcmp(f->name, name) == 0;
}
#endif
