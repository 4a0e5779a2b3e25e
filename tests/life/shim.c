/* Preloaded into one rank: does something to the process when it sends its n-th control frame of some kinds, so that a
 * fault comes at a known moment. A frame starts with its length, its kind, three zeros and a number.
 *   SHIM_KINDS=7,8  SHIM_NTH=2  SHIM_ACT=kill|exit|stop   (the frame is not sent) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_int seen;

static void look(const void *buffer, size_t length)
{
    const unsigned char *b = buffer;
    const char *kinds = getenv("SHIM_KINDS");
    uint32_t body;
    if (!kinds || length < 12 || b[5] || b[6] || b[7])
        return;
    memcpy(&body, b, 4);
    if (body != length - 12)
        return;
    for (const char *k = kinds; k; k = strchr(k, ',') ? strchr(k, ',') + 1 : NULL) {
        if (atoi(k) != b[4])
            continue;
        if (atomic_fetch_add(&seen, 1) + 1 != atoi(getenv("SHIM_NTH")))
            return;
        const char *act = getenv("SHIM_ACT");
        if (!strcmp(act, "exit"))
            _exit(0);
        kill(getpid(), strcmp(act, "stop") ? SIGKILL : SIGSTOP);
    }
}

ssize_t send(int fd, const void *buffer, size_t length, int flags)
{
    static ssize_t (*real)(int, const void *, size_t, int);
    if (!real)
        real = (ssize_t (*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    look(buffer, length);
    return real(fd, buffer, length, flags);
}
