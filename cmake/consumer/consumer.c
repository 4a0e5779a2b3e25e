/* Two ranks of one process sum in host memory, with an installed library. Run it with
 * FLAGOSCOMM_TIERS=host: the buffers are ordinary memory. */
#include <flagos_comm.h>

#include <stdio.h>

int main(void) {
    flagosComm_t comms[2];
    float data[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
    int version = 0;
    int i;

    if (flagosGetVersion(&version) != flagosSuccess || version != FLAGOS_COMM_VERSION_CODE) {
        fprintf(stderr, "the header is of version %d, the library of %d\n", FLAGOS_COMM_VERSION_CODE, version);
        return 1;
    }
    if (flagosCommInitAll(comms, 2, NULL) != flagosSuccess) goto failed;
    if (flagosGroupStart() != flagosSuccess) goto failed;
    for (i = 0; i < 2; i++) {
        if (flagosAllReduce(data[i], data[i], 4, flagosFloat32, flagosSum, comms[i], NULL) != flagosSuccess)
            goto failed;
    }
    if (flagosGroupEnd() != flagosSuccess) goto failed;
    for (i = 0; i < 4; i++) {
        float want = 11.0f * (float)(i + 1);
        if (data[0][i] != want || data[1][i] != want) {
            fprintf(stderr, "element %d is %g and %g, not %g\n", i, data[0][i], data[1][i], want);
            return 1;
        }
    }
    for (i = 0; i < 2; i++) {
        if (flagosCommDestroy(comms[i]) != flagosSuccess) goto failed;
    }
    printf("version %d: the sums are right\n", version);
    return 0;
failed:
    fprintf(stderr, "%s\n", flagosGetLastError(NULL));
    return 1;
}
