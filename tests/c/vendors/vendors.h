/* What the programs of this folder share. They know no vendor: what a vendor can do comes from the test in variables.
 *   MACHINE       the library with the machine's state
 *   VENDOR        the vendor's key
 *   TIER          the tier that is expected (1)
 *   MOVES, WIDE   a digit for each data type: whether it can be moved at all, and by Broadcast and AllGather
 *   REDUCES       a word for each data type, of a digit for each operator
 *   VENDOR_CALLS  names of the functions of the collective library that do work, with commas between them
 *   NULL_STREAM   0 if there is no default stream */
#ifndef VENDORS_H
#define VENDORS_H
#include "../native/native.h"

enum { DTYPES = FLAGOS_NUM_DATA_TYPES, REDOPS = FLAGOS_NUM_RED_OPS };

static UNUSED const char *variable(const char *name)
{
    const char *value = getenv(name);
    if (!value)
        FAIL("%s is not set", name);
    return value;
}

static UNUSED bool moves(int dtype, bool widely) { return variable(widely ? "WIDE" : "MOVES")[dtype] == '1'; }

static UNUSED bool reduces(int dtype, int op, int n)
{
    if (n == 1 && op == flagosAvg) /* of one rank it is the sum */
        op = flagosSum;
    return variable("REDUCES")[dtype * (REDOPS + 1) + op] == '1';
}

static UNUSED bool has_null_stream(void) { return strcmp(variable("NULL_STREAM"), "0") != 0; }

/* Calls that the collective library has had. */
static UNUSED long vendor_calls(void)
{
    char names[1024], *rest = NULL;
    long sum = 0;
    snprintf(names, sizeof names, "%s", variable("VENDOR_CALLS"));
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        sum += count_of(name);
    return sum;
}

/* This process's rank of a communicator of all processes, on the device with its number and on the expected tier. */
static UNUSED flagosComm_t join_all(int turn)
{
    flagosUniqueId id = shared_id(turn);
    flagosComm_t comm = join(my_rank, n_ranks, &id);
    flagosCommInfo_t info = info_of(comm);
    if (info.tier != atoi(variable("TIER")))
        FAIL("tier %d of %s", info.tier, info.vendor);
    if (info.tier == flagosTierNative && strcmp(info.vendor, variable("VENDOR")))
        FAIL("the vendor is %s, not %s", info.vendor, variable("VENDOR"));
    return comm;
}

static UNUSED void copy_in(void *device, const void *host, size_t bytes, flagosStream_t stream)
{
    OK(flagosMemcpyAsync(device, host, bytes, flagosMemcpyHostToDevice, stream));
    OK(flagosStreamSynchronize(stream));
}

static UNUSED void copy_out(void *host, const void *device, size_t bytes, flagosStream_t stream)
{
    OK(flagosStreamSynchronize(stream));
    OK(flagosMemcpyAsync(host, device, bytes, flagosMemcpyDeviceToHost, stream));
    OK(flagosStreamSynchronize(stream));
}
#endif
