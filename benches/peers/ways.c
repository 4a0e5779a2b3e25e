/* The ways of flagosAllReduce on the host tier against each other in the same processes.
 *     ways FOLDER SIZES PAIRS BLOCK_SECONDS
 *
 * FOLDER has copies of the library: each is an engine of its own, and reads its environment once. So one passes
 * everything through shared memory (off.so), one has the kernel copy (on.so), one chooses (auto.so).
 */
#include <signal.h>
#include <sys/wait.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "pair.h"

typedef struct {
    pair_ours ours; /* First: a way is what pair_ours_allreduce takes. */
    pair_library library;
    flagosResult_t (*mem_alloc)(void **, size_t);
    flagosResult_t (*mem_free)(void *);
} way;

static way load(const char *folder, const char *single_copy, int rank, int nranks, int from, int to) {
    char path[4096];
    way w;
    memset(&w, 0, sizeof w);
    snprintf(path, sizeof path, "%s/%s.so", folder, single_copy);
    setenv("FLAGOSCOMM_SINGLE_COPY", single_copy, 1);
    w.library = pair_load(path);
    void *symbol = pair_symbol(w.library.library, "flagosMemAlloc");
    memcpy(&w.mem_alloc, &symbol, sizeof symbol);
    symbol = pair_symbol(w.library.library, "flagosMemFree");
    memcpy(&w.mem_free, &symbol, sizeof symbol);
    flagosUniqueId id;
    if (rank == 0) {
        if (w.library.get_unique_id(&id) != flagosSuccess)
            pair_die("flagosGetUniqueId: %s", w.library.ours.last_error(NULL));
        if (write(to, &id, sizeof id) != (ssize_t)sizeof id) pair_die("the pipe is broken");
    } else if (read(from, &id, sizeof id) != (ssize_t)sizeof id) {
        pair_die("the pipe is broken");
    }
    if (w.library.init_rank(&w.library.ours.comm, nranks, &id, rank) != flagosSuccess)
        pair_die("flagosCommInitRank: %s", w.library.ours.last_error(NULL));
    w.ours = w.library.ours;
    return w;
}

static float *heap_make(void *context, size_t bytes) {
    way *w = (way *)context;
    void *memory = NULL;
    if (w->mem_alloc(&memory, bytes) != flagosSuccess) pair_die("flagosMemAlloc: %s", w->ours.last_error(NULL));
    memset(memory, 0, bytes);
    return (float *)memory;
}

static void heap_drop(void *context, float *buffer, size_t bytes) {
    (void)bytes;
    if (((way *)context)->mem_free(buffer) != flagosSuccess) pair_die("flagosMemFree failed");
}

/* What no all-reduce of 2 ranks can beat: each reads and writes as many bytes, past the caches. */
static void nt_copy(void *context, const float *send, float *recv, size_t count) {
    (void)context;
#ifdef __SSE2__
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (size_t j = 0; j < 16; j += 4) _mm_stream_ps(recv + i + j, _mm_loadu_ps(send + i + j));
    _mm_sfence();
    memcpy(recv + i, send + i, (count - i) * sizeof *recv);
#else
    memcpy(recv, send, count * sizeof *recv);
#endif
}

static int run(int rank, int from, int to, char **argv) {
    const int nranks = 2;
    way off = load(argv[1], "off", rank, nranks, from, to);
    way on = load(argv[1], "on", rank, nranks, from, to);
    way automatic = load(argv[1], "auto", rank, nranks, from, to);
    const pair_side own = {NULL, NULL, 0}, heap = {heap_make, heap_drop, 0}, cost = {NULL, NULL, 1};
    const struct {
        const char *what;
        way *ours, *peer;
        pair_side sides[2];
    } cases[] = {
        {"segment; ours: kernel copies", &on, &off, {own, own}},
        {"segment; ours: chosen", &automatic, &off, {own, own}},
        {"kernel copies; ours: chosen", &automatic, &on, {own, own}},
        {"segment; ours: heap", &off, &off, {heap, own}},
        {"non-temporal copy; ours: heap", &off, NULL, {heap, cost}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (rank == 0) printf("{\"peer\":\"%s\"}\n", cases[i].what);
        pair_allreduce peer = cases[i].peer ? pair_ours_allreduce : nt_copy;
        pair_run_sides(pair_ours_allreduce, cases[i].ours, cases[i].what, peer, cases[i].peer, rank, nranks, argv[2],
                       atoi(argv[3]), atof(argv[4]), cases[i].sides);
    }
    off.library.destroy(off.ours.comm);
    on.library.destroy(on.ours.comm);
    automatic.library.destroy(automatic.ours.comm);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 5) pair_die("usage: ways FOLDER SIZES PAIRS BLOCK_SECONDS");
    int ends[2];
    if (pipe(ends) != 0) pair_die("no pipe");
    const pid_t other = fork();
    if (other < 0) pair_die("fork failed");
    int code = run(other == 0 ? 1 : 0, ends[0], ends[1], argv);
    if (other != 0) {
        int status = 0;
        if (code != 0) kill(other, SIGKILL);
        if (waitpid(other, &status, 0) != other || status != 0) code = 1;
    }
    return code;
}
