/* Knobs and the call log, shared by all stand-ins. Every stand-in library holds its own copy of this state.
 *   FAKE_LOG=FILE               one line per call:  pid tid device=N name(args) -> result
 *   FAKE_FAIL=sym:code[@n|@n+]  the call returns code (only the n-th call; the n-th and all later ones)
 *   FAKE_DELAY=sym:ms           the call first sleeps
 *   FAKE_HANG=sym               the call never returns, unless its communicator is aborted
 * Several entries are separated by commas. Read at the first call of each library. */
#ifndef FAKE_KNOBS_H
#define FAKE_KNOBS_H
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct fk_site {
    const char *name;
    atomic_long count;
    atomic_int known;
    struct fk_site *next;
};

/* Given by each library: hooks into the driver stand-in. */
static void fk_register_site(struct fk_site *);
static int fk_log_device(void);
static void fk_check_alive(const char *name);

static pthread_once_t fk_once = PTHREAD_ONCE_INIT;
static bool fk_any;
static int fk_log_fd = -1;
static const char *fk_fail, *fk_delay, *fk_hang;

static void fk_read_env(void)
{
    const char *log = getenv("FAKE_LOG");
    fk_fail = getenv("FAKE_FAIL");
    fk_delay = getenv("FAKE_DELAY");
    fk_hang = getenv("FAKE_HANG");
    if (log && *log)
        fk_log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    fk_any = fk_log_fd >= 0 || fk_fail || fk_delay || fk_hang;
}

/* Finds the entry of `name` in a knob; returns what follows the name ("" or ":..."), or NULL. */
static inline const char *fk_entry(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p;) {
        if (!strncmp(p, name, n) && (p[n] == 0 || p[n] == ':' || p[n] == ',' || p[n] == '@'))
            return p + n;
        p = strchr(p, ',');
        if (p)
            p++;
    }
    return NULL;
}

static void fk_msleep(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) && errno == EINTR) {
    }
}

__attribute__((format(printf, 3, 4), unused)) static void fk_log(const char *name, int result, const char *fmt, ...)
{
    if (fk_log_fd < 0)
        return;
    int saved = errno;
    char line[1024];
    int n = snprintf(line, sizeof line, "%d %ld device=%d %s(", (int)getpid(), (long)syscall(SYS_gettid), fk_log_device(), name);
    va_list ap;
    va_start(ap, fmt);
    n += vsnprintf(line + n, sizeof line - (size_t)n - 32, fmt, ap);
    va_end(ap);
    if (n > (int)sizeof line - 33)
        n = (int)sizeof line - 33;
    if (result == -1000)
        n += snprintf(line + n, 32, ") -> hang\n");
    else
        n += snprintf(line + n, 32, ") -> %d\n", result);
    if (write(fk_log_fd, line, (size_t)n) < 0) {
    }
    errno = saved;
}

/* To be called first by every entry. Returns 0, or the code that the call must return at once.
 * `aborted` (may be NULL) ends a hang, which then returns `abort_code`. */
static int fk_enter(struct fk_site *site, atomic_int *aborted, int abort_code)
{
    pthread_once(&fk_once, fk_read_env);
    if (!atomic_load_explicit(&site->known, memory_order_acquire))
        fk_register_site(site);
    long nth = atomic_fetch_add_explicit(&site->count, 1, memory_order_relaxed) + 1;
    fk_check_alive(site->name);
    if (!fk_any)
        return 0;
    const char *e = fk_entry(fk_delay, site->name);
    if (e && *e == ':')
        fk_msleep(atol(e + 1));
    if (fk_entry(fk_hang, site->name)) {
        fk_log(site->name, -1000, "hang");
        while (!aborted || !atomic_load(aborted))
            fk_msleep(2);
        return abort_code;
    }
    e = fk_entry(fk_fail, site->name);
    if (e && *e == ':') {
        char *end;
        long code = strtol(e + 1, &end, 0);
        if (*end == '@') {
            long from = strtol(end + 1, &end, 10);
            if (*end == '+' ? nth < from : nth != from)
                return 0;
        }
        return (int)code;
    }
    return 0;
}
#endif
