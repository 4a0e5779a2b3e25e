/*
 * Two copies of NCCL on the machine. HW_NCCL is the one that programs find, HW_NCCL_COPY the same file in another folder.
 * The copy that the process has already is used; a path that the user names wins, with a warning; the report says which and why.
 */
#include "hw.h"

#include <limits.h>

static char warnings[4096];
static pthread_mutex_t warnings_lock = PTHREAD_MUTEX_INITIALIZER;

static void hear(int32_t level, const char *text, void *user)
{
    (void)user;
    if (level > 2) return;
    pthread_mutex_lock(&warnings_lock);
    strncat(warnings, text, sizeof warnings - strlen(warnings) - 2);
    strcat(warnings, "\n");
    pthread_mutex_unlock(&warnings_lock);
}

static void keep_report(const char *name)
{
    const char *folder = getenv("HW_LOG");
    int json;
    for (json = 0; json < 2; json++) {
        size_t needed = 0;
        char path[PATH_MAX], *text;
        FILE *file;
        flagosResult_t (*get)(char *, size_t, size_t *) = json ? F.GetLoadReportJson : F.GetLoadReport;
        get(NULL, 0, &needed);
        text = calloc(1, needed + 1);
        get(text, needed, NULL);
        if (folder != NULL) {
            snprintf(path, sizeof path, "%s/load-report.%s.%s", folder, name, json ? "json" : "txt");
            file = fopen(path, "w");
            if (file != NULL) {
                fputs(text, file);
                fclose(file);
            }
        }
        free(text);
    }
}

static int report_has(const char *words)
{
    size_t needed = 0;
    char *text;
    int found;
    F.GetLoadReport(NULL, 0, &needed);
    text = calloc(1, needed + 1);
    F.GetLoadReport(text, needed, NULL);
    found = strstr(text, words) != NULL;
    free(text);
    return found;
}

static void same_file(int where, const char *used, const char *wanted)
{
    char a[PATH_MAX], b[PATH_MAX];
    if (realpath(used, a) == NULL || realpath(wanted, b) == NULL || strcmp(a, b) != 0) complain(where, "%s is used instead of %s", used, wanted);
}

/* One communicator of two ranks in one thread, and what it runs on. */
static flagosCommInfo_t try_it(void)
{
    flagosComm_t comm[2] = {NULL, NULL};
    flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;
    void *a[2], *b[2];
    Stream stream[2];
    enum { count = 5003 };
    int i, n = number_from("HW_DEVICES", 2) < 2 ? 1 : 2;
    FLAGOS(CommInitAll(comm, n, NULL));
    if (comm[0] == NULL) give_up("no communicators: %s", last_text());
    for (i = 0; i < n; i++) {
        set_device(i);
        CUDA(StreamCreateWithFlags(&stream[i], 1));
        a[i] = device_memory(count * 4);
        b[i] = device_memory(count * 4);
        upload(a[i], count, i, 0);
    }
    FLAGOS(GroupStart());
    for (i = 0; i < n; i++) FLAGOS(AllReduce(a[i], b[i], count, flagosFloat32, flagosSum, comm[i], (flagosStream_t)stream[i]));
    FLAGOS(GroupEnd());
    for (i = 0; i < n; i++) {
        CUDA(StreamSynchronize(stream[i]));
        if (n == 2) expect_sum(__LINE__, b[i], count, 0, 1);
    }
    FLAGOS(CommGetInfo(comm[0], &info));
    for (i = 0; i < n; i++) FLAGOS(CommDestroy(comm[i]));
    return info;
}

static int have_copy(int rank, const char *name)
{
    const char *path = getenv("HW_NCCL_COPY");
    if (path != NULL && *path != 0) return 1;
    skip(rank, name, "HW_NCCL_COPY is not set");
    return 0;
}

static void alone_found(int rank)
{
    flagosCommInfo_t info;
    info = try_it();
    EXPECT(info.tier == flagosTierNative, "tier %d", info.tier);
    EXPECT(report_has(info.libraryPath), "the report does not name %s", info.libraryPath);
    keep_report("found");
    report(rank, "found", "%s version %d", info.libraryPath, info.libraryVersion);
}

static void already_loaded(int rank)
{
    const char *copy = getenv("HW_NCCL_COPY");
    flagosCommInfo_t info;
    if (!have_copy(rank, "used")) return;
    if (dlopen(copy, RTLD_NOW | RTLD_LOCAL) == NULL) give_up("%s", dlerror());
    load_cuda();
    load_ours();
    info = try_it();
    same_file(__LINE__, info.libraryPath, copy);
    EXPECT(report_has(info.libraryPath), "the report does not name %s", info.libraryPath);
    EXPECT(report_has("already-loaded"), "the report does not say 'already-loaded'");
    keep_report("already-loaded");
    report(rank, "used", "%s was loaded before and is used; the report says so", info.libraryPath);
}

static void explicit_path(int rank)
{
    const char *copy = getenv("HW_NCCL_COPY"), *named = getenv("HW_NCCL");
    flagosCommInfo_t info;
    if (!have_copy(rank, "wins")) return;
    if (named == NULL || *named == 0) {
        skip(rank, "wins", "HW_NCCL is not set");
        return;
    }
    if (dlopen(copy, RTLD_NOW | RTLD_LOCAL) == NULL) give_up("%s", dlerror());
    setenv("FLAGOSCOMM_NVIDIA_LIBRARY", named, 1);
    load_cuda();
    load_ours();
    FLAGOS(SetLogCallback(hear, NULL));
    info = try_it();
    same_file(__LINE__, info.libraryPath, named);
    EXPECT(strstr(warnings, copy) != NULL && strstr(warnings, "another copy") != NULL, "no warning that names both; heard: %s",
           warnings);
    EXPECT(report_has(info.libraryPath), "the report does not name %s", info.libraryPath);
    keep_report("explicit");
    report(rank, "wins", "FLAGOSCOMM_NVIDIA_LIBRARY=%s wins over the loaded copy; warned: %.600s", named, warnings);
}

/* A path that is wrong is an error in words: nothing else is taken. */
static void wrong_path(int rank)
{
    flagosComm_t comm = NULL;
    flagosResult_t result;
    setenv("FLAGOSCOMM_NVIDIA_LIBRARY", "/nonexistent/libnccl.so.2", 1);
    load_cuda();
    load_ours();
    result = F.CommInitAll(&comm, 1, NULL);
    EXPECT(result != flagosSuccess, "it was accepted");
    EXPECT(strstr(last_text(), "/nonexistent/libnccl.so.2") != NULL, "the path is not in: %s", last_text());
    keep_report("wrong-path");
    report(rank, "refused", "result %d: %.700s", (int)result, last_text());
}

static const struct scenario list[] = {
    {"copies.default", alone, 1, 40, alone_found, {"FLAGOSCOMM_TIERS=native"}, 0, 0},
    {"copies.already_loaded", alone, 1, 40, already_loaded, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
    {"copies.explicit", alone, 1, 40, explicit_path, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
    {"copies.wrong_path", alone, 1, 40, wrong_path, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
};
HW_MAIN(list)
