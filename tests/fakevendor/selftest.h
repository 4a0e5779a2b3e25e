/* What the selftests of the stand-ins with shapes of their own share. */
#ifndef FAKE_SELFTEST_H
#define FAKE_SELFTEST_H
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(expr, want) \
    do { \
        long got_ = (long)(expr), want_ = (long)(want); \
        if (got_ != want_) { \
            fprintf(stderr, "%s:%d: %s = %ld, expected %ld\n", __FILE__, __LINE__, #expr, got_, want_); \
            _exit(1); \
        } \
    } while (0)
#define OK(expr) EXPECT(expr, 0)

/* Runs a function in a process of its own; it has to end with 0, or with a signal. */
static inline void join_process(pid_t p, int sig)
{
    int st;
    EXPECT(waitpid(p, &st, 0), p);
    if (sig ? !WIFSIGNALED(st) || WTERMSIG(st) != sig : st) {
        fprintf(stderr, "a process ended with %#x\n", st);
        exit(1);
    }
}
static inline pid_t start_process(void *(*fn)(void *), void *arg)
{
    pid_t p = fork();
    if (!p) {
        alarm(60);
        fn(arg);
        exit(0);
    }
    return p;
}

/* Two ranks as processes, or as threads. `args` are two things of `size` bytes. */
static inline void two_ranks(bool processes, void *(*fn)(void *), void *args, size_t size)
{
    if (processes) {
        pid_t p[2];
        for (int i = 0; i < 2; i++)
            p[i] = start_process(fn, (char *)args + (size_t)i * size);
        for (int i = 0; i < 2; i++)
            join_process(p[i], 0);
    } else {
        pthread_t t[2];
        for (int i = 0; i < 2; i++)
            pthread_create(&t[i], NULL, fn, (char *)args + (size_t)i * size);
        for (int i = 0; i < 2; i++)
            pthread_join(t[i], NULL);
    }
    printf("%s: ok\n", processes ? "processes" : "threads");
    fflush(stdout);
}

/* For a stream: keeps it at work until the flag is set. */
static inline void wait_for_flag(void *flag)
{
    while (!*(volatile int *)flag)
        usleep(1000);
}

static inline void *in_thread(void *(*fn)(void *), void *arg)
{
    pthread_t t;
    void *r;
    pthread_create(&t, NULL, fn, arg);
    pthread_join(t, &r);
    return r;
}
#endif
