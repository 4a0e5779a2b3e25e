/* Run set-user-id: the library must not believe paths in the environment of whoever started the program. Built with
 * NOT_SECURE it shows what the same environment does to an ordinary program. */
#include "flagos_comm.h"
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

int main(void)
{
#ifndef NOT_SECURE
    if (!getauxval(AT_SECURE)) {
        puts("not secure");
        return 0;
    }
#endif
    printf("secure: uid %d euid %d\n", (int)getuid(), (int)geteuid());
    static char report[1 << 18];
    flagosResult_t result = flagosGetLoadReport(report, sizeof report, NULL);
    if (result != flagosSuccess) {
        printf("load report: %d %s\n", (int)result, flagosGetLastError(NULL));
        return 1;
    }
    fputs(report, stdout);
    flagosUniqueId id;
    flagosComm_t comm = NULL;
    result = flagosGetUniqueId(&id);
    if (result == flagosSuccess)
        result = flagosCommInitRank(&comm, 1, &id, 0);
    if (result != flagosSuccess) {
        printf("init: %d %s\n", (int)result, flagosGetLastError(NULL));
        return 1;
    }
    flagosCommDestroy(comm);
    /* Nothing that the variables name has come into the process. */
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "planted"))
            printf("mapped: %s", line);
    if (maps)
        fclose(maps);
    puts("done");
    return 0;
}
