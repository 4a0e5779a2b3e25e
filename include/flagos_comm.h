/*
 * flagos_comm.h - collective communication on any accelerator.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Generated from capi/flagos by `cargo run -p xtask -- header`. Do not edit.
 */

#ifndef FLAGOS_COMM_H
#define FLAGOS_COMM_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/** Version of this header. flagosGetVersion gives that of the library. */
#define FLAGOS_COMM_VERSION_MAJOR 0
#define FLAGOS_COMM_VERSION_MINOR 1
#define FLAGOS_COMM_VERSION_PATCH 0
/** major * 10000 + minor * 100 + patch. */
#define FLAGOS_COMM_VERSION_CODE 100

/*
 * What holds for every function
 * =============================
 *
 * Errors. A call returns a flagosResultCode. On failure its out-parameters are NULL or 0 and
 * flagosGetLastError has a text. Bad arguments, dead handles included, are errors. What the library
 * can't check is a pointer to memory that is not there.
 *
 * Counts are in elements, sizes in bytes. Ranks are those of the communicator.
 *
 * Streams
 * -------
 * A stream is the vendor's own handle, cast. flagosCommGetInfo says which streams a communicator
 * takes (streamKind) and when an operation is complete (completion); both are fixed at init:
 *
 *   vendor tiers    the vendor's streams, NULL being its default stream. Operations are ordered on
 *                   the stream; the call returns before they are complete.
 *   host tier,      the driver's streams. The work runs after what is on the stream, and what is put
 *   with a driver   on the stream later runs after the work.
 *   host tier,      streams of flagosStreamCreate; operations are ordered on them. With NULL the
 *   no driver       operation is complete when the call returns.
 *
 * Buffers must stay valid and untouched until the operation is complete: until the stream has passed
 * it, or until the call returns where completion is flagosCompletionReturn and the stream is NULL.
 * Inside a group nothing is started before the outermost flagosGroupEnd.
 *
 * Operations
 * ----------
 * All ranks must call the same operations of a communicator in the same order. What an operation can
 * return:
 *
 *   flagosSuccess               started, or complete (see Streams).
 *   flagosInProgress            vendorNonblocking = 1: not enqueued yet, poll
 *                               flagosCommGetAsyncError.
 *   flagosInvalidArgument       comm is NULL or no live communicator; datatype, op, root or peer is
 *                               out of range; a buffer is NULL that may not be; the byte size
 *                               overflows; no live host stream.
 *   flagosInvalidUsage          init is not finished; comm is finalized, revoked, or from before a
 *                               fork; the ranks disagree on operation, count, datatype, op or root (as
 *                               far as calls are checked); not allowed in a group, or outside one.
 *   flagosNotSupported          the tier or the vendor can't: this datatype, this op on this datatype,
 *                               this function; or the stream is being captured.
 *   flagosRemoteError           another rank failed, died or left.
 *   flagosTimeout               a limit passed; the text names the missing ranks.
 *   flagosAborted               comm was aborted.
 *   flagosUnboundDevice         the calling thread has no device and the vendor needs one.
 *   flagosUnhandledDeviceError  the driver failed.
 *   flagosUnhandledCclError     the vendor's library failed.
 *   flagosSystemError           the operating system refused memory or a descriptor.
 *   flagosInternalError         a fault of the library.
 *
 * Inside a group most of them are returned by flagosGroupEnd.
 *
 * On a vendor's library an operation, or the end of a group, may fail on one rank alone, while the
 * others wait for that rank inside the vendor's work:
 *
 *   flagosUnhandledDeviceError, flagosSystemError, flagosInternalError, flagosRemoteError,
 *   flagosUnhandledCclError and flagosTimeout end the communicator: they stay its state, later
 *   operations return them, and the other ranks are told at once. There flagosCommGetAsyncError gives
 *   flagosRemoteError, with the rank, the operation and the vendor's words; with FLAGOSCOMM_LIVENESS the
 *   vendor's communicator is aborted, which frees what waits.
 *
 *   flagosInvalidArgument, flagosInvalidUsage, flagosNotSupported and flagosUnboundDevice are about the
 *   call, and mostly come on all ranks. The communicator stays usable, and nobody is told: ranks that
 *   have made the call wait until the communicator is aborted (flagosCommAbort), of which the others
 *   hear.
 *
 * Threads
 * -------
 * Any thread may use any communicator, one call on it at a time. flagosCommAbort may run together
 * with anything, the queries (GetAsyncError, Count, UserRank, GetDeviceNumber, GetName, GetInfo,
 * flagosGetLastError) with anything but flagosCommDestroy, and flagosCommDestroy with nothing.
 * Calls on different communicators are independent.
 */

/** Results. 0 to 9 are FlagCX's. A flagosResult_t may hold a number that is none of these. */
typedef enum {
    flagosSuccess = 0,
    /** A call to the accelerator's driver or runtime failed. */
    flagosUnhandledDeviceError = 1,
    /** The operating system refused something: memory, sockets, files. */
    flagosSystemError = 2,
    /** A fault of this library, or of the vendor's where the text names one of its functions. */
    flagosInternalError = 3,
    /** An argument is outside what the function accepts. */
    flagosInvalidArgument = 4,
    /** The call is not allowed in this state, or the ranks disagree. */
    flagosInvalidUsage = 5,
    /** Another rank failed, died or left. */
    flagosRemoteError = 6,
    /** Not an error: the work goes on, ask again. */
    flagosInProgress = 7,
    /** The vendor's collective library failed with a code that has no better name here. */
    flagosUnhandledCclError = 8,
    /** The tier in use can't do this. */
    flagosNotSupported = 9,
    /** A limit passed; the text names the phase and the missing ranks. */
    flagosTimeout = 100,
    /** The communicator was aborted. */
    flagosAborted = 101,
    /** The calling thread has no current device and the driver says so. */
    flagosUnboundDevice = 102
} flagosResultCode;

/** Data types. 0 to 9 are NCCL's and FlagCX's, 10 and 11 NCCL's. */
typedef enum {
    flagosInt8 = 0,
    flagosChar = 0,
    flagosUint8 = 1,
    flagosInt32 = 2,
    flagosInt = 2,
    flagosUint32 = 3,
    flagosInt64 = 4,
    flagosUint64 = 5,
    flagosFloat16 = 6,
    flagosHalf = 6,
    flagosFloat32 = 7,
    flagosFloat = 7,
    flagosFloat64 = 8,
    flagosDouble = 8,
    flagosBfloat16 = 9,
    /** The host tier moves it; a vendor does what it can. */
    flagosFloat8e4m3 = 10,
    /** The host tier moves it; a vendor does what it can. */
    flagosFloat8e5m2 = 11
} flagosDataTypeCode;

/** Number of data types. */
#define FLAGOS_NUM_DATA_TYPES 12

/** Reduction operators, with NCCL's and FlagCX's numbers. */
typedef enum {
    /** Integers wrap. */
    flagosSum = 0,
    /** Integers wrap. */
    flagosProd = 1,
    /** A NaN on any rank gives NaN. */
    flagosMax = 2,
    /** A NaN on any rank gives NaN. */
    flagosMin = 3,
    /** Sum divided by the number of ranks; integers truncate toward zero. */
    flagosAvg = 4
} flagosRedOpCode;

/** Number of built-in reduction operators. */
#define FLAGOS_NUM_RED_OPS 5

/** Where the scalar of flagosRedOpCreatePreMulSum lies. */
typedef enum {
    flagosScalarDevice = 0,
    flagosScalarHostImmediate = 1
} flagosScalarResidenceCode;

/** Directions of flagosMemcpyAsync, with FlagCX's numbers. */
typedef enum {
    flagosMemcpyHostToDevice = 0,
    flagosMemcpyDeviceToHost = 1,
    flagosMemcpyDeviceToDevice = 2,
    /** The pointers decide. */
    flagosMemcpyDefault = 3
} flagosMemcpyCode;

/** Kinds of memory in flagosPointerAttributes_t. */
typedef enum {
    /** The driver does not know it: ordinary host memory. */
    flagosMemoryUnregistered = 0,
    flagosMemoryPinnedHost = 1,
    flagosMemoryDevice = 2,
    flagosMemoryManaged = 3
} flagosMemoryCode;

/** Tiers in flagosCommInfo_t. */
typedef enum {
    flagosTierNative = 1,
    flagosTierFlagcx = 2,
    flagosTierHost = 3
} flagosTierCode;

/** Whose streams a communicator takes. */
typedef enum {
    flagosStreamKindVendor = 1,
    flagosStreamKindHost = 2
} flagosStreamKindCode;

/** When an operation is complete. */
typedef enum {
    /** When the stream has passed it. */
    flagosCompletionStream = 1,
    /** When the call returns if the stream is NULL, else when the host stream has passed it. */
    flagosCompletionReturn = 2,
    /** Synchronised with the caller's device stream. */
    flagosCompletionDeviceStream = 3
} flagosCompletionCode;

/** "Not set" for every number of a flagosConfig_t. */
#define FLAGOS_CONFIG_UNDEF INT_MIN

/** Start of every flagosConfig_t: nothing is set. */
#define FLAGOS_CONFIG_INITIALIZER                                                          \
    {                                                                                      \
        sizeof(flagosConfig_t),   /* size */                                               \
        FLAGOS_CONFIG_MAGIC,      /* magic */                                              \
        FLAGOS_COMM_VERSION_CODE, /* version */                                            \
        FLAGOS_CONFIG_UNDEF,      /* blocking */                                           \
        FLAGOS_CONFIG_UNDEF,      /* vendorNonblocking */                                  \
        FLAGOS_CONFIG_UNDEF,      /* initTimeoutMs */                                      \
        FLAGOS_CONFIG_UNDEF,      /* collectiveTimeoutMs */                                \
        FLAGOS_CONFIG_UNDEF,      /* destroyTimeoutMs */                                   \
        NULL,                     /* name */                                               \
        NULL,                     /* description */                                        \
        NULL,                     /* tiers */                                              \
        NULL,                     /* netName */                                            \
        FLAGOS_CONFIG_UNDEF,      /* device */                                             \
        FLAGOS_CONFIG_UNDEF,      /* cgaClusterSize */                                     \
        FLAGOS_CONFIG_UNDEF,      /* minCTAs */                                            \
        FLAGOS_CONFIG_UNDEF,      /* maxCTAs */                                            \
        FLAGOS_CONFIG_UNDEF,      /* splitShare */                                         \
        FLAGOS_CONFIG_UNDEF,      /* trafficClass */                                       \
        FLAGOS_CONFIG_UNDEF,      /* collnetEnable */                                      \
        FLAGOS_CONFIG_UNDEF,      /* CTAPolicy */                                          \
        FLAGOS_CONFIG_UNDEF,      /* shrinkShare */                                        \
        FLAGOS_CONFIG_UNDEF,      /* nvlsCTAs */                                           \
        FLAGOS_CONFIG_UNDEF,      /* nChannelsPerNetPeer */                                \
        FLAGOS_CONFIG_UNDEF,      /* nvlinkCentricSched */                                 \
        FLAGOS_CONFIG_UNDEF,      /* graphUsageMode */                                     \
        FLAGOS_CONFIG_UNDEF,      /* numRmaCtx */                                          \
        FLAGOS_CONFIG_UNDEF,      /* maxP2pPeers */                                        \
        FLAGOS_CONFIG_UNDEF       /* reserved */                                           \
    }

/** Start of every flagosSimInfo_t. */
#define FLAGOS_SIM_INFO_INITIALIZER                                                        \
    { sizeof(flagosSimInfo_t), FLAGOS_CONFIG_MAGIC, FLAGOS_COMM_VERSION_CODE, 0.0f, 0u }

/** Start of every flagosCommInfo_t. */
#define FLAGOS_COMM_INFO_INITIALIZER                                                       \
    { sizeof(flagosCommInfo_t), 0, 0, 0, 0, { 0 }, { 0 }, { 0 }, { 0 } }

/** Start of every flagosPointerAttributes_t. */
#define FLAGOS_POINTER_ATTRIBUTES_INITIALIZER                                              \
    { sizeof(flagosPointerAttributes_t), 0, 0 }

/** Start of every flagosPluginCounters_t. */
#define FLAGOS_PLUGIN_COUNTERS_INITIALIZER                                                 \
    { sizeof(flagosPluginCounters_t), 0u, 0u, 0u }


/**
 * Bytes of a flagosUniqueId.
 */
#define FLAGOS_UNIQUE_ID_BYTES 256

/**
 * The most ranks that a communicator can have.
 */
#define FLAGOS_MAX_RANKS 1048576

/**
 * The most bytes, with the terminating zero, that a text in a flagosConfig_t can have.
 */
#define FLAGOS_MAX_TEXT_BYTES 1024

/**
 * Bytes of flagosCommInfo_t's vendor.
 */
#define FLAGOS_MAX_VENDOR_BYTES 32

/**
 * Bytes of flagosCommInfo_t's libraryPath and hostEngineText.
 */
#define FLAGOS_MAX_PATH_BYTES 1024

/**
 * Bytes of flagosCommInfo_t's hostEngine.
 */
#define FLAGOS_MAX_ENGINE_BYTES 32

/**
 * The first number that an operator of flagosRedOpCreatePreMulSum can have.
 */
#define FLAGOS_FIRST_CUSTOM_REDOP 1000

/**
 * The first word of every flagosConfig_t and flagosSimInfo_t behind its size.
 */
#define FLAGOS_CONFIG_MAGIC 4054189504

/**
 * The colour of a rank that takes no part in what flagosCommSplit makes.
 */
#define FLAGOS_SPLIT_NOCOLOR -1

/**
 * flagosCommShrink: the communicator is healthy, its operations are finished first.
 */
#define FLAGOS_SHRINK_DEFAULT 0

/**
 * flagosCommShrink: the excluded ranks are gone, operations under way are aborted.
 */
#define FLAGOS_SHRINK_ABORT 1

/**
 * flagosCommRevoke: the only flags there are.
 */
#define FLAGOS_REVOKE_DEFAULT 0

/**
 * flagosCommSuspend: release memory that can be had again at resume.
 */
#define FLAGOS_SUSPEND_MEM 1

/**
 * flagosCommWindowRegister: an ordinary window.
 */
#define FLAGOS_WIN_DEFAULT 0

/**
 * flagosCommWindowRegister: every rank's buffer has the same offset in its allocation.
 */
#define FLAGOS_WIN_COLL_SYMMETRIC 1

/**
 * flagosEventCreate: an event that can be timed.
 */
#define FLAGOS_EVENT_DEFAULT 0

/**
 * flagosEventCreate: an event that can't be timed and is cheaper to record.
 */
#define FLAGOS_EVENT_DISABLE_TIMING 1

/**
 * What lies behind a flagosComm_t.
 */
typedef struct flagosComm flagosComm;

/**
 * What lies behind a flagosEvent_t.
 */
typedef struct flagosEvent flagosEvent;

/**
 * What lies behind a flagosStream_t.
 */
typedef struct flagosStream flagosStream;

/**
 * What lies behind a flagosWindow_t.
 */
typedef struct flagosWindow flagosWindow;

/**
 * Result of a call: a `flagosResultCode`.
 */
typedef int32_t flagosResult_t;

/**
 * A communicator: one rank's membership in a group of ranks. The library never follows this
 * pointer but looks it up; a handle that was destroyed, aborted or made up is an error, not a crash.
 */
typedef struct flagosComm *flagosComm_t;

/**
 * Type of an element: a `flagosDataTypeCode`.
 */
typedef int32_t flagosDataType_t;

/**
 * What FlagCX has done through this library's adaptor plugins. Start from
 * FLAGOS_PLUGIN_COUNTERS_INITIALIZER. The struct grows at its end only; the library fills what both
 * headers know and zeroes the rest.
 */
typedef struct flagosPluginCounters_t {
    /**
     * sizeof(flagosPluginCounters_t) of the caller's header.
     */
    size_t size;
    /**
     * Communicators that were joined through flagcxCCLAdaptorPlugin_v1, also those that are gone.
     */
    uint64_t communicators;
    /**
     * Operations that were started on them.
     */
    uint64_t operations;
    /**
     * Calls of functions of flagcxDeviceAdaptorPlugin_v1.
     */
    uint64_t deviceCalls;
} flagosPluginCounters_t;

/**
 * Receives every line of the log that passes FLAGOSCOMM_LOG: level 1 (error) to 5 (trace), the text
 * (valid during the call) and the pointer given to flagosSetLogCallback. Called from any thread,
 * from several at once; must not call this library.
 */
typedef void (*flagosLogCallback_t)(int32_t level, const char *text, void *user);

/**
 * Names a communicator to be. Opaque bytes, zeros included: copy it whole, never as a string.
 * The first 128 bytes carry all of its meaning.
 */
typedef struct flagosUniqueId {
    /**
     * Opaque.
     */
    char internal[FLAGOS_UNIQUE_ID_BYTES];
} flagosUniqueId;

/**
 * Options of a communicator. Start from FLAGOS_CONFIG_INITIALIZER and set what you need; a number
 * that is FLAGOS_CONFIG_UNDEF and a text that is NULL leave the choice to the environment and then
 * to the default. The call copies everything; nothing needs to outlive it.
 *
 * The struct grows at its end only. The library accepts the struct of an older header. It accepts
 * that of a newer header if what this library does not know is all zero, which is how every later
 * field says "undefined"; else it returns flagosNotSupported and a text with both versions.
 */
typedef struct flagosConfig_t {
    /**
     * sizeof(flagosConfig_t) of the caller's header.
     */
    size_t size;
    /**
     * FLAGOS_CONFIG_MAGIC.
     */
    uint32_t magic;
    /**
     * FLAGOS_COMM_VERSION_CODE of the caller's header.
     */
    uint32_t version;
    /**
     * 1 (default): the call returns when the communicator is ready. 0: it returns flagosInProgress
     * with a valid handle at once, and flagosCommGetAsyncError says when it is ready.
     */
    int32_t blocking;
    /**
     * 1: put the vendor's own communicator in its non-blocking mode, which lasts for its life and
     * makes every operation return flagosInProgress until it is enqueued. 0 (default): do not.
     */
    int32_t vendorNonblocking;
    /**
     * Limit in milliseconds for init and for everything that the ranks agree on; 0 is no limit.
     * Default 120000.
     */
    int64_t initTimeoutMs;
    /**
     * Limit in milliseconds for one collective of the host tier; 0 is no limit. Default 1800000.
     */
    int64_t collectiveTimeoutMs;
    /**
     * Limit in milliseconds for destroy, and for the vendor's abort; 0 is no limit. Default 10000.
     */
    int64_t destroyTimeoutMs;
    /**
     * Name of the communicator for error texts, and for the vendor where it takes one.
     */
    const char *name;
    /**
     * Free text for people, shown in dumps.
     */
    const char *description;
    /**
     * Tiers to try, in this order, comma-separated: native, flagcx, host.
     */
    const char *tiers;
    /**
     * Vendor: name of the network module (NCCL's netName).
     */
    const char *netName;
    /**
     * Device to bind to. Default: what the driver says is current on the calling thread.
     */
    int32_t device;
    /**
     * Vendor: NCCL's cgaClusterSize.
     */
    int32_t cgaClusterSize;
    /**
     * Vendor: NCCL's minCTAs.
     */
    int32_t minCTAs;
    /**
     * Vendor: NCCL's maxCTAs.
     */
    int32_t maxCTAs;
    /**
     * Vendor: NCCL's splitShare.
     */
    int32_t splitShare;
    /**
     * Vendor: NCCL's trafficClass.
     */
    int32_t trafficClass;
    /**
     * Vendor: NCCL's collnetEnable.
     */
    int32_t collnetEnable;
    /**
     * Vendor: NCCL's CTAPolicy.
     */
    int32_t CTAPolicy;
    /**
     * Vendor: NCCL's shrinkShare.
     */
    int32_t shrinkShare;
    /**
     * Vendor: NCCL's nvlsCTAs.
     */
    int32_t nvlsCTAs;
    /**
     * Vendor: NCCL's nChannelsPerNetPeer.
     */
    int32_t nChannelsPerNetPeer;
    /**
     * Vendor: NCCL's nvlinkCentricSched.
     */
    int32_t nvlinkCentricSched;
    /**
     * Vendor: NCCL's graphUsageMode.
     */
    int32_t graphUsageMode;
    /**
     * Vendor: NCCL's numRmaCtx.
     */
    int32_t numRmaCtx;
    /**
     * Vendor: NCCL's maxP2pPeers.
     */
    int32_t maxP2pPeers;
    /**
     * Must be FLAGOS_CONFIG_UNDEF.
     */
    int32_t reserved;
} flagosConfig_t;

/**
 * What a communicator runs on. Start from FLAGOS_COMM_INFO_INITIALIZER. The struct grows at its
 * end only; the library fills what both headers know and zeroes the rest.
 */
typedef struct flagosCommInfo_t {
    /**
     * sizeof(flagosCommInfo_t) of the caller's header.
     */
    size_t size;
    /**
     * A flagosTierCode.
     */
    int32_t tier;
    /**
     * A flagosStreamKindCode: whose streams the communicator's operations take.
     */
    int32_t streamKind;
    /**
     * A flagosCompletionCode: when an operation is complete.
     */
    int32_t completion;
    /**
     * Version of the vendor's collective library as that library encodes it, 0 where there is none.
     */
    int32_t libraryVersion;
    /**
     * Key of the vendor such as "nvidia"; empty on the host tier of a machine without a driver.
     */
    char vendor[FLAGOS_MAX_VENDOR_BYTES];
    /**
     * File of the vendor's collective library, cut to fit; empty on the host tier.
     */
    char libraryPath[FLAGOS_MAX_PATH_BYTES];
    /**
     * What the host tier moves data with: "shm", "ucx", "mpi" or "ucc", as FLAGOSCOMM_HOST_ENGINE names them, or
     * "shm+ucx" or "shm+mpi", shared memory inside each machine and messages between them; empty on other tiers.
     */
    char hostEngine[FLAGOS_MAX_ENGINE_BYTES];
    /**
     * The same for people, with the version and file of a library, cut to fit; empty on other tiers.
     */
    char hostEngineText[FLAGOS_MAX_PATH_BYTES];
} flagosCommInfo_t;

/**
 * Reduction operator: a `flagosRedOpCode`, or one of flagosRedOpCreatePreMulSum.
 */
typedef int32_t flagosRedOp_t;

/**
 * A stream: the vendor's own handle (cudaStream_t, aclrtStream, ...) cast to this type, or one of
 * flagosStreamCreate. NULL is the vendor's default stream; on a machine without an accelerator's
 * driver NULL makes the call blocking.
 */
typedef struct flagosStream *flagosStream_t;

/**
 * What flagosGroupSimulateEnd answers. Start from FLAGOS_SIM_INFO_INITIALIZER.
 */
typedef struct flagosSimInfo_t {
    /**
     * sizeof(flagosSimInfo_t) of the caller's header.
     */
    size_t size;
    /**
     * FLAGOS_CONFIG_MAGIC.
     */
    uint32_t magic;
    /**
     * FLAGOS_COMM_VERSION_CODE of the caller's header.
     */
    uint32_t version;
    /**
     * Estimated time of the group in microseconds.
     */
    float estimatedTime;
    /**
     * Zero.
     */
    uint32_t reserved;
} flagosSimInfo_t;

/**
 * A memory window of flagosCommWindowRegister.
 */
typedef struct flagosWindow *flagosWindow_t;

/**
 * Where a scalar lies: a `flagosScalarResidenceCode`.
 */
typedef int32_t flagosScalarResidence_t;

/**
 * An event: the vendor's own handle cast to this type, or one of flagosEventCreate.
 */
typedef struct flagosEvent *flagosEvent_t;

/**
 * Direction of a copy: a `flagosMemcpyCode`.
 */
typedef int32_t flagosMemcpyType_t;

/**
 * What the driver knows about a pointer. Start from FLAGOS_POINTER_ATTRIBUTES_INITIALIZER. The
 * struct grows at its end only; the library fills what both headers know and zeroes the rest.
 */
typedef struct flagosPointerAttributes_t {
    /**
     * sizeof(flagosPointerAttributes_t) of the caller's header.
     */
    size_t size;
    /**
     * A flagosMemoryCode.
     */
    int32_t kind;
    /**
     * Device that owns the memory, -1 for none.
     */
    int32_t device;
} flagosPointerAttributes_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of this library as one number, as FLAGOS_COMM_VERSION_CODE is that of the header:
 * major * 10000 + minor * 100 + patch. Not the vendor's; see flagosCommGetInfo for that.
 *
 * @param version  receives the number; 0 on failure. Not NULL.
 *
 * Threads: any. Touches neither a driver nor a vendor's library.
 *
 * @return flagosSuccess; flagosInvalidArgument (version is NULL); flagosInternalError.
 *
 * Semantics: NCCL's ncclGetVersion.
 */
flagosResult_t flagosGetVersion(int *version);

/**
 * What a result code means, as a sentence. See flagosGetLastError for what happened.
 *
 * @param result  any number.
 *
 * Threads: any.
 *
 * @return a text that lives for ever, never NULL, also for numbers that are no result.
 *
 * Semantics: NCCL's.
 */
const char *flagosGetErrorString(flagosResult_t result);

/**
 * The text of the last error: of a communicator, or of the calling thread if comm is NULL or no live
 * communicator (the errors of calls that have no communicator, or whose communicator is gone). It
 * names the vendor's code and words, library, communicator, operation and a hint, as far as
 * there are any. A call that succeeds does not clear it.
 *
 * @param comm  the communicator, or NULL. Never followed.
 *
 * Threads: any.
 *
 * @return a text, empty if there was no error, never NULL, valid until the calling thread's next call
 * of this function.
 *
 * Semantics: NCCL's ncclGetLastError, with a text per communicator.
 */
const char *flagosGetLastError(flagosComm_t comm);

/**
 * Size of one element.
 *
 * @param datatype  any number.
 *
 * Threads: any.
 *
 * @return bytes; 0 for a number that is no data type.
 *
 * Semantics: FlagCX's getFlagcxDataTypeSize.
 */
size_t flagosDataTypeSize(flagosDataType_t datatype);

/**
 * Key of the vendor whose driver is in use, such as "nvidia"; "host" on a machine without one. May
 * load the driver.
 *
 * @param buffer  receives the text, cut to fit and always terminated. NULL only with size 0.
 * @param size    bytes of buffer.
 * @param needed  receives the bytes of the whole text with its zero; 0 on failure. May be NULL if
 *                buffer is not.
 *
 * Threads: any.
 *
 * @return flagosSuccess, also when it was cut; flagosInvalidArgument (a NULL that is not allowed; a
 * vendor that the environment names and nobody knows); flagosInternalError.
 *
 * Semantics: this library's.
 */
flagosResult_t flagosGetVendor(char *buffer, size_t size, size_t *needed);

/**
 * The load report: which libraries were considered, a line for each, and why each was taken or not.
 * Loads nothing itself.
 *
 * @param buffer  receives the text, cut to fit and always terminated. NULL only with size 0.
 * @param size    bytes of buffer.
 * @param needed  receives the bytes of the whole text with its zero; 0 on failure. May be NULL if
 *                buffer is not.
 *
 * Threads: any.
 *
 * @return flagosSuccess, also when it was cut; flagosInvalidArgument (a NULL that is not allowed);
 * flagosInternalError.
 *
 * Semantics: this library's.
 */
flagosResult_t flagosGetLoadReport(char *buffer, size_t size, size_t *needed);

/**
 * flagosGetLoadReport as JSON. A text that was cut is no JSON: ask for needed first.
 *
 * @param buffer  receives the text, cut to fit and always terminated. NULL only with size 0.
 * @param size    bytes of buffer.
 * @param needed  receives the bytes of the whole text with its zero; 0 on failure. May be NULL if
 *                buffer is not.
 *
 * Threads: any.
 *
 * @return as flagosGetLoadReport.
 *
 * Semantics: this library's.
 */
flagosResult_t flagosGetLoadReportJson(char *buffer, size_t size, size_t *needed);

/**
 * What FlagCX has done through this library's adaptor plugins, in this process. A plugin that FlagCX
 * refuses is told to nobody, and FlagCX goes on with its own functions: then these numbers stay 0.
 *
 * @param counters  in: its size (FLAGOS_PLUGIN_COUNTERS_INITIALIZER); out: the numbers, all zero
 *                  behind size on failure. Not NULL.
 *
 * Threads: any. Operations that other threads are starting may be missing.
 *
 * @return flagosSuccess; flagosInvalidArgument (NULL, a wrong size); flagosInternalError.
 *
 * Semantics: this library's.
 */
flagosResult_t flagosGetPluginCounters(struct flagosPluginCounters_t *counters);

/**
 * Sends the log to a function of yours instead of stderr.
 *
 * @param callback  the function; NULL restores the default.
 * @param user      handed to every call of it. May be NULL.
 *
 * Threads: any. Lines that other threads are writing may still reach the old function for a moment.
 *
 * @return flagosSuccess; flagosInternalError.
 *
 * Semantics: this library's.
 */
flagosResult_t flagosSetLogCallback(flagosLogCallback_t callback, void *user);

/**
 * Makes an id that names one communicator to be, and serves its rendezvous from the calling
 * process. Call it on one rank and give the id to all ranks by any means.
 *
 * The process must live until all ranks have joined. The id serves one communicator. It touches
 * neither a driver nor a vendor's library. It costs one descriptor and one small thread until the
 * communicator is made; an id that nobody uses is given up after ten times the init deadline.
 *
 * @param id  receives 256 bytes; all zero on failure. Not NULL.
 *
 * Threads: any, at any time. Not affected by an open group.
 *
 * @return flagosSuccess; flagosInvalidArgument if id is NULL; flagosSystemError if no socket can be
 * opened or no network interface fits FLAGOSCOMM_SOCKET_IFNAME; flagosInternalError.
 *
 * Semantics: NCCL's, with FlagCX's size.
 */
flagosResult_t flagosGetUniqueId(struct flagosUniqueId *id);

/**
 * Joins the communicator that an id names, as one of its ranks. All nranks ranks must call it. They
 * agree on one tier (the vendor's library, FlagCX, or the embedded host tier), or all get the same
 * error.
 *
 * The communicator is bound to the device that the driver says is current on the calling thread.
 * Destroy it with flagosCommDestroy.
 *
 * In a group the call only records: *comm is NULL until the outermost flagosGroupEnd writes it, so
 * comm must stay valid until then. One thread can own several ranks this way.
 *
 * @param comm    receives the communicator; NULL on failure. Not NULL.
 * @param nranks  number of ranks, 1 to FLAGOS_MAX_RANKS, the same on all of them.
 * @param id      the id of flagosGetUniqueId. Not NULL. Only its first 128 bytes matter.
 * @param rank    this rank, 0 to nranks-1, each once.
 *
 * Threads: any; several inits may run at once.
 *
 * @return flagosSuccess; flagosInvalidArgument (a NULL, nranks or rank out of range, an id that is not
 * one); flagosInvalidUsage (the ranks disagree: nranks, versions, a rank twice; the text names the odd
 * rank. Or nobody serves the id any more: it was used before, or the process that made it has ended);
 * flagosTimeout (the text names the missing ranks); flagosRemoteError (another rank failed);
 * flagosNotSupported (no tier that is allowed works; the text says why for each);
 * flagosUnhandledDeviceError, flagosUnboundDevice, flagosUnhandledCclError, flagosSystemError,
 * flagosInternalError.
 *
 * Semantics: NCCL's; the agreement is this library's.
 */
flagosResult_t flagosCommInitRank(flagosComm_t *comm,
                                  int nranks,
                                  const struct flagosUniqueId *id,
                                  int rank);

/**
 * flagosCommInitRank with options. All ranks should pass the same ones; where they must agree and
 * do not, all get flagosInvalidUsage.
 *
 * With blocking = 0 it returns flagosInProgress at once and *comm is valid: poll
 * flagosCommGetAsyncError until it says flagosSuccess; until then only that call and
 * flagosCommAbort are legal.
 *
 * @param comm    receives the communicator; NULL on failure. Not NULL.
 * @param nranks  number of ranks, 1 to FLAGOS_MAX_RANKS.
 * @param id      the id of flagosGetUniqueId. Not NULL.
 * @param rank    this rank, 0 to nranks-1.
 * @param config  the options; NULL is none. Copied by the call.
 *
 * Threads and groups: as flagosCommInitRank.
 *
 * @return what flagosCommInitRank returns; flagosInProgress (see above); flagosInvalidArgument also
 * for a config that is not initialised or a field out of range; flagosNotSupported also for a config
 * of a newer header that sets what this library does not have.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommInitRankConfig(flagosComm_t *comm,
                                        int nranks,
                                        const struct flagosUniqueId *id,
                                        int rank,
                                        const struct flagosConfig_t *config);

/**
 * flagosCommInitRankConfig with several ids, whose processes share the work of the rendezvous. For
 * jobs of thousands of ranks. All ranks pass the same ids in the same order.
 *
 * @param comm    receives the communicator; NULL on failure. Not NULL.
 * @param nranks  number of ranks, 1 to FLAGOS_MAX_RANKS.
 * @param myrank  this rank, 0 to nranks-1.
 * @param nId     number of ids, 1 to nranks.
 * @param ids     nId ids. Not NULL. Read during the call only.
 * @param config  the options; NULL is none.
 *
 * Threads and groups: as flagosCommInitRank.
 *
 * @return what flagosCommInitRankConfig returns; flagosInvalidArgument also if nId is out of range.
 *
 * Semantics: NCCL's ncclCommInitRankScalable.
 */
flagosResult_t flagosCommInitRankScalable(flagosComm_t *comm,
                                          int nranks,
                                          int myrank,
                                          int nId,
                                          const struct flagosUniqueId *ids,
                                          const struct flagosConfig_t *config);

/**
 * Makes all ranks of a communicator in the calling process, one per device: comms[i] is rank i on
 * devlist[i]. Nobody else takes part, and no id is needed.
 *
 * One thread that owns several ranks must put the calls of one operation into a group.
 *
 * @param comms    receives ndev communicators; all NULL on failure. Not NULL.
 * @param ndev     number of ranks, 1 to FLAGOS_MAX_RANKS.
 * @param devlist  ndev device indices; NULL is 0, 1, ..., ndev-1. On a machine without a driver the
 *                 indices only count.
 *
 * Threads: any. In a group it is refused with flagosInvalidUsage: it is a group of its own.
 *
 * @return flagosSuccess; flagosInvalidArgument (a NULL, ndev out of range, a device that does not
 * exist); flagosInvalidUsage (inside a group; a device twice on a vendor that takes each once);
 * flagosNotSupported, flagosTimeout, flagosUnhandledDeviceError, flagosUnhandledCclError,
 * flagosSystemError, flagosInternalError as in flagosCommInitRank.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommInitAll(flagosComm_t *comms, int ndev, const int *devlist);

/**
 * Splits a communicator: the ranks that pass the same colour form a new one, in the order of key and
 * then of their old rank. All ranks of comm must call it, also those that pass no colour. The new
 * communicator does not depend on the life of the old one.
 *
 * @param comm     the communicator to split. It stays usable.
 * @param color    the colour, not negative; FLAGOS_SPLIT_NOCOLOR to take part in none, which makes
 *                 *newcomm NULL and the call succeed.
 * @param key      orders the ranks of a colour.
 * @param newcomm  receives the communicator; NULL on failure. Not NULL.
 * @param config   the options; NULL takes those of comm.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted. In a group *newcomm is
 * written by the outermost flagosGroupEnd.
 *
 * @return what flagosCommInitRankConfig returns; flagosInvalidArgument also if comm is no live
 * communicator; flagosInvalidUsage also if another split of comm is under way or comm has failed;
 * flagosAborted.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommSplit(flagosComm_t comm,
                               int color,
                               int key,
                               flagosComm_t *newcomm,
                               const struct flagosConfig_t *config);

/**
 * Makes a communicator without some ranks of an old one, for example those that died. The ranks that
 * stay call it, all with the same list; the excluded ones do not. Ranks keep their order.
 *
 * @param comm                the old communicator.
 * @param excludeRanksList    excludeRanksCount ranks of comm, each once. Not NULL.
 * @param excludeRanksCount   1 to the number of ranks less one. For the same ranks again there is
 *                            flagosCommSplit.
 * @param newcomm             receives the communicator; NULL on failure. Not NULL.
 * @param config              the options; NULL takes those of comm.
 * @param shrinkFlags         FLAGOS_SHRINK_DEFAULT: comm is healthy and stays usable.
 *                            FLAGOS_SHRINK_ABORT: what runs on comm is aborted first; afterwards comm
 *                            is only good for flagosCommDestroy and flagosCommAbort.
 *
 * Those that stay meet without the others: on one machine through a name of its network namespace, between
 * machines over TCP, at the address by which the first of them had reached the others, on one of 16 ports between
 * 10240 and 32767.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted. In a group *newcomm is
 * written by the outermost flagosGroupEnd.
 *
 * @return what flagosCommSplit returns; flagosInvalidArgument also for an empty list, for one that names a
 * rank that does not exist, a rank twice or the caller, and for unknown flags; flagosTimeout (after the
 * init deadline; the text names the ranks that have not called it, by their numbers in comm).
 *
 * Semantics: NCCL's ncclCommShrink.
 */
flagosResult_t flagosCommShrink(flagosComm_t comm,
                                const int *excludeRanksList,
                                int excludeRanksCount,
                                flagosComm_t *newcomm,
                                const struct flagosConfig_t *config,
                                int shrinkFlags);

/**
 * Lets all ranks of a communicator agree on something of the caller's, for example whether each of them
 * can go a faster way: every rank gives a level and a reason, and all get the same answer, the lowest
 * level, each rank's, and a text with the ranks and their reasons. Collective, over the control
 * connections: it touches neither devices nor the vendor's library, and works while streams are captured.
 *
 * A usual scale is 1 for yes, 0 for not now and -1 for never: then the answer is yes only if all ranks
 * say so. What a rank wants to stop asking for has to be agreed on first: it may leave a later call out
 * only because of an answer, since all ranks have that one.
 *
 * @param comm    the communicator. It stays usable.
 * @param level   this rank's level, any number.
 * @param reason  why, in words, for the text; what is beyond 1023 bytes is cut. NULL is none.
 * @param lowest  receives the lowest level of all ranks; 0 on failure. Not NULL.
 * @param levels  receives each rank's level, by rank: as many as comm has ranks; untouched on failure. NULL
 *                is allowed.
 * @param text    receives which ranks gave which level and why, the lowest level first, cut to fit and
 *                always terminated; empty if all gave the same level and none a reason. The same on all
 *                ranks. NULL only with size 0.
 * @param size    bytes of text.
 * @param needed  receives the bytes of the whole text with its zero; 0 on failure. NULL is allowed.
 *
 * A text that is not empty and differs from the last one is also logged, at INFO on rank 0.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted. In a group it is refused.
 *
 * @return flagosSuccess; flagosInvalidArgument (lowest is NULL, text is NULL with a size, no live
 * communicator; the other ranks are not told); flagosInvalidUsage (in a group; init is not finished; comm
 * is finalized; another call over the control connections, a split say, is under way on comm here or on another rank;
 * an operation there is not seen, and ends this call by its deadline);
 * flagosTimeout (after the init deadline; the text names the missing ranks); flagosRemoteError (a rank
 * died or left); flagosAborted; what comm has failed with before; flagosInternalError. After
 * flagosTimeout, flagosRemoteError and different calls comm can't agree or split any more.
 *
 * Semantics: this library's.
 */
flagosResult_t flagosCommAgree(flagosComm_t comm,
                               int level,
                               const char *reason,
                               int *lowest,
                               int *levels,
                               char *text,
                               size_t size,
                               size_t *needed);

/**
 * Finishes what is under way on a communicator, on all ranks. Collective. Afterwards only queries,
 * flagosCommDestroy and flagosCommAbort are legal on it. Needed only where ranks end at very
 * different times; flagosCommDestroy alone is enough otherwise. With blocking = 0 it goes on in the
 * background, and flagosCommGetAsyncError tells when it is over.
 *
 * @param comm  the communicator.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted. Not in a group.
 *
 * @return flagosSuccess; flagosInProgress (blocking = 0); flagosInvalidArgument (no live
 * communicator); flagosInvalidUsage (in a group; called twice); flagosTimeout, flagosRemoteError,
 * flagosAborted, flagosUnhandledDeviceError, flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommFinalize(flagosComm_t comm);

/**
 * Frees a communicator. Local: it waits for this rank's work, no longer than the destroy limit, and
 * not for other ranks. The handle is invalid afterwards, whatever the result; a second call is
 * flagosInvalidArgument. A vendor's destroy that waits for that of the other ranks (Cambricon's) ends at the
 * limit too, with flagosTimeout.
 *
 * The ranks may call it at any time after the same number of collectives. One that makes more waits in
 * vain, and its flagosCommGetAsyncError says so. A collective in a graph counts when it is captured and not
 * when it is replayed, so where some ranks replay what others call, all should have finished before one
 * leaves.
 *
 * @param comm  the communicator.
 *
 * Threads: not while another call runs on comm. Not in a group that has used comm.
 *
 * @return flagosSuccess; flagosInvalidArgument (NULL or no live communicator); flagosInvalidUsage (in
 * a group that has used it); flagosTimeout (freed by force); flagosUnhandledDeviceError,
 * flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's, but NULL is refused.
 */
flagosResult_t flagosCommDestroy(flagosComm_t comm);

/**
 * Ends everything on a communicator and frees it. Calls that other threads have under way on it
 * return flagosAborted; other ranks get flagosRemoteError or flagosAborted. The handle is invalid
 * afterwards, whatever the result.
 *
 * @param comm  the communicator.
 *
 * Threads: any, at any time, also while other calls run on comm, init included.
 *
 * @return flagosSuccess; flagosInvalidArgument (NULL or no live communicator); flagosTimeout (the
 * vendor's abort did not return; what it holds is leaked); flagosUnhandledCclError,
 * flagosInternalError.
 *
 * Semantics: NCCL's, but NULL is refused.
 */
flagosResult_t flagosCommAbort(flagosComm_t comm);

/**
 * Ends everything on a communicator but keeps it for flagosCommShrink, flagosCommSplit,
 * flagosCommDestroy and flagosCommAbort. Local: on the host tier the calls of other ranks that wait for this one end
 * with flagosRemoteError and a text that names it, between machines once the ranks that pass it on are in a call, too
 * (with FLAGOSCOMM_LIVENESS at once); on a vendor's library the others find out by their own failure or by their own
 * call. Calls that this rank has under way return flagosAborted, later ones flagosInvalidUsage.
 *
 * @param comm         the communicator.
 * @param revokeFlags  FLAGOS_REVOKE_DEFAULT.
 *
 * Threads: any, also while operations run on comm.
 *
 * @return flagosSuccess; flagosInProgress (blocking = 0); flagosInvalidArgument (no live
 * communicator, unknown flags); flagosNotSupported (the tier can't); flagosUnhandledCclError,
 * flagosInternalError.
 *
 * Semantics: NCCL's ncclCommRevoke.
 */
flagosResult_t flagosCommRevoke(flagosComm_t comm,
                                int revokeFlags);

/**
 * Gives back device resources of a communicator until flagosCommResume. Call it on all ranks, with
 * nothing under way.
 *
 * @param comm          the communicator.
 * @param suspendFlags  FLAGOS_SUSPEND_MEM.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted.
 *
 * @return flagosSuccess; flagosInvalidArgument (no live communicator, unknown flags);
 * flagosInvalidUsage (suspended already); flagosNotSupported (the tier can't);
 * flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's ncclCommSuspend.
 */
flagosResult_t flagosCommSuspend(flagosComm_t comm, int suspendFlags);

/**
 * Takes back what flagosCommSuspend gave away. Call it on all ranks.
 *
 * @param comm  the communicator.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted.
 *
 * @return flagosSuccess; flagosInvalidArgument (no live communicator); flagosInvalidUsage (not
 * suspended); flagosNotSupported (the tier can't); flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's ncclCommResume.
 */
flagosResult_t flagosCommResume(flagosComm_t comm);

/**
 * Tells how a communicator is, without waiting: flagosSuccess, flagosInProgress while a call that
 * does not block is under way, or the error that broke it: flagosRemoteError when a rank has died or
 * aborted, when the vendor's library has failed on it, or when it has destroyed its communicator after
 * fewer collectives than this rank has made. After an error only queries, flagosCommRevoke, flagosCommShrink, flagosCommDestroy and flagosCommAbort
 * are of use; flagosGetLastError has the text.
 *
 * @param comm        the communicator.
 * @param asyncError  receives the state; flagosSuccess on failure of this call. Not NULL.
 *
 * Threads: any, also while operations run on comm.
 *
 * @return flagosSuccess (look at *asyncError); flagosInvalidArgument (asyncError is NULL, no live
 * communicator); flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommGetAsyncError(flagosComm_t comm,
                                       flagosResult_t *asyncError);

/**
 * Number of ranks of a communicator.
 *
 * @param comm   the communicator.
 * @param count  receives the number; 0 on failure. Not NULL.
 *
 * Threads: any, also while operations run on comm.
 *
 * @return flagosSuccess; flagosInvalidArgument (count is NULL, no live communicator);
 * flagosInvalidUsage (init is not finished); flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommCount(flagosComm_t comm, int *count);

/**
 * Rank of the caller in a communicator.
 *
 * @param comm  the communicator.
 * @param rank  receives the rank; 0 on failure. Not NULL.
 *
 * Threads: any, also while operations run on comm.
 *
 * @return as flagosCommCount.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommUserRank(flagosComm_t comm, int *rank);

/**
 * Device that a communicator is bound to.
 *
 * @param comm    the communicator.
 * @param device  receives the index, -1 without a driver; 0 on failure. Not NULL.
 *
 * Threads: any, also while operations run on comm.
 *
 * @return as flagosCommCount.
 *
 * Semantics: NCCL's ncclCommCuDevice, FlagCX's flagcxCommGetDeviceNumber.
 */
flagosResult_t flagosCommGetDeviceNumber(flagosComm_t comm, int *device);

/**
 * Name of a communicator: that of its config, or one that the library made.
 *
 * @param comm    the communicator.
 * @param buffer  receives the name, cut to fit and always terminated. NULL only with size 0.
 * @param size    bytes of buffer.
 * @param needed  receives the bytes of the whole name with its zero; 0 on failure. May be NULL if
 *                buffer is not.
 *
 * Threads: any, also while operations run on comm.
 *
 * @return flagosSuccess, also when it was cut; flagosInvalidArgument (a NULL that is not allowed, no
 * live communicator); flagosInternalError.
 *
 * Semantics: this library's.
 */
flagosResult_t flagosCommGetName(flagosComm_t comm,
                                 char *buffer,
                                 size_t size,
                                 size_t *needed);

/**
 * Tells what a communicator runs on: tier, vendor, library and its version, whose streams it takes,
 * and when its operations are complete. Fixed from init to the end.
 *
 * @param comm  the communicator.
 * @param info  in: its size (FLAGOS_COMM_INFO_INITIALIZER); out: the answer, all zero behind size on
 *              failure. Not NULL.
 *
 * Threads: any, also while operations run on comm.
 *
 * @return flagosSuccess; flagosInvalidArgument (info is NULL or its size is wrong, no live
 * communicator); flagosInvalidUsage (init is not finished); flagosInternalError.
 *
 * Semantics: this library's.
 */
flagosResult_t flagosCommGetInfo(flagosComm_t comm,
                                 struct flagosCommInfo_t *info);

/**
 * Reduces count elements of every rank's sendbuff and puts the same result into every rank's
 * recvbuff.
 *
 * Buffers: count elements each, count * flagosDataTypeSize(datatype) bytes. In place if
 * sendbuff == recvbuff. Either may be NULL only if count is 0.
 *
 * @param sendbuff  this rank's contribution.
 * @param recvbuff  receives the result.
 * @param count     number of elements, the same on all ranks.
 * @param datatype  the same on all ranks.
 * @param op        the same on all ranks. flagosAvg divides by the number of ranks, truncating for
 *                  integers; a NaN on any rank makes flagosMax and flagosMin NaN; integers wrap.
 * @param comm      the communicator.
 * @param stream    see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosAllReduce(const void *sendbuff,
                               void *recvbuff,
                               size_t count,
                               flagosDataType_t datatype,
                               flagosRedOp_t op,
                               flagosComm_t comm,
                               flagosStream_t stream);

/**
 * Copies count elements from the root's sendbuff to every rank's recvbuff.
 *
 * Buffers: count elements each. sendbuff is used on the root only and may be NULL elsewhere. In
 * place on the root if sendbuff == recvbuff. recvbuff may be NULL only if count is 0.
 *
 * @param sendbuff  the data, on the root.
 * @param recvbuff  receives the data.
 * @param count     number of elements, the same on all ranks.
 * @param datatype  the same on all ranks.
 * @param root      rank of the source in comm, the same on all ranks.
 * @param comm      the communicator.
 * @param stream    see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosBroadcast(const void *sendbuff,
                               void *recvbuff,
                               size_t count,
                               flagosDataType_t datatype,
                               int root,
                               flagosComm_t comm,
                               flagosStream_t stream);

/**
 * Reduces count elements of every rank's sendbuff into the root's recvbuff.
 *
 * Buffers: count elements each. recvbuff is used on the root only and may be NULL elsewhere. In
 * place on the root if sendbuff == recvbuff. sendbuff may be NULL only if count is 0.
 *
 * @param sendbuff  this rank's contribution.
 * @param recvbuff  receives the result, on the root.
 * @param count     number of elements, the same on all ranks.
 * @param datatype  the same on all ranks.
 * @param op        as in flagosAllReduce.
 * @param root      rank of the destination in comm, the same on all ranks.
 * @param comm      the communicator.
 * @param stream    see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosReduce(const void *sendbuff,
                            void *recvbuff,
                            size_t count,
                            flagosDataType_t datatype,
                            flagosRedOp_t op,
                            int root,
                            flagosComm_t comm,
                            flagosStream_t stream);

/**
 * Puts every rank's sendcount elements, in the order of the ranks, into every rank's recvbuff.
 *
 * Buffers: sendbuff sendcount elements, recvbuff nranks * sendcount. In place if
 * sendbuff == recvbuff + rank * sendcount elements. Either may be NULL only if sendcount is 0.
 *
 * @param sendbuff   this rank's block.
 * @param recvbuff   receives all blocks.
 * @param sendcount  number of elements of one block, the same on all ranks.
 * @param datatype   the same on all ranks.
 * @param comm       the communicator.
 * @param stream     see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosAllGather(const void *sendbuff,
                               void *recvbuff,
                               size_t sendcount,
                               flagosDataType_t datatype,
                               flagosComm_t comm,
                               flagosStream_t stream);

/**
 * Reduces every rank's sendbuff and leaves block i of the result in rank i's recvbuff.
 *
 * Buffers: sendbuff nranks * recvcount elements, recvbuff recvcount. In place if
 * recvbuff == sendbuff + rank * recvcount elements. Either may be NULL only if recvcount is 0.
 *
 * @param sendbuff   this rank's contribution to all blocks.
 * @param recvbuff   receives this rank's block of the result.
 * @param recvcount  number of elements of one block, the same on all ranks.
 * @param datatype   the same on all ranks.
 * @param op         as in flagosAllReduce.
 * @param comm       the communicator.
 * @param stream     see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosReduceScatter(const void *sendbuff,
                                   void *recvbuff,
                                   size_t recvcount,
                                   flagosDataType_t datatype,
                                   flagosRedOp_t op,
                                   flagosComm_t comm,
                                   flagosStream_t stream);

/**
 * Puts every rank's count elements, in the order of the ranks, into the root's recvbuff.
 *
 * Buffers: sendbuff count elements, recvbuff nranks * count. recvbuff is used on the root only and
 * may be NULL elsewhere. In place on the root if sendbuff == recvbuff + root * count elements.
 * sendbuff may be NULL only if count is 0.
 *
 * @param sendbuff  this rank's block.
 * @param recvbuff  receives all blocks, on the root.
 * @param count     number of elements of one block, the same on all ranks.
 * @param datatype  the same on all ranks.
 * @param root      rank of the destination in comm, the same on all ranks.
 * @param comm      the communicator.
 * @param stream    see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: FlagCX's and NCCL's (2.28).
 */
flagosResult_t flagosGather(const void *sendbuff,
                            void *recvbuff,
                            size_t count,
                            flagosDataType_t datatype,
                            int root,
                            flagosComm_t comm,
                            flagosStream_t stream);

/**
 * Copies block i of the root's sendbuff into rank i's recvbuff.
 *
 * Buffers: sendbuff nranks * count elements, recvbuff count. sendbuff is used on the root only and
 * may be NULL elsewhere. In place on the root if recvbuff == sendbuff + root * count elements.
 * recvbuff may be NULL only if count is 0.
 *
 * @param sendbuff  all blocks, on the root.
 * @param recvbuff  receives this rank's block.
 * @param count     number of elements of one block, the same on all ranks.
 * @param datatype  the same on all ranks.
 * @param root      rank of the source in comm, the same on all ranks.
 * @param comm      the communicator.
 * @param stream    see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: FlagCX's and NCCL's (2.28).
 */
flagosResult_t flagosScatter(const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             flagosDataType_t datatype,
                             int root,
                             flagosComm_t comm,
                             flagosStream_t stream);

/**
 * Every rank sends block j of its sendbuff to rank j, which puts it at block i of its recvbuff, i
 * being the sender.
 *
 * Buffers: nranks * count elements each. Not in place: the buffers must not overlap. Either may be
 * NULL only if count is 0.
 *
 * @param sendbuff  the blocks to send.
 * @param recvbuff  receives the blocks.
 * @param count     number of elements of one block, the same on all ranks.
 * @param datatype  the same on all ranks.
 * @param comm      the communicator.
 * @param stream    see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: FlagCX's and NCCL's (2.28).
 */
flagosResult_t flagosAlltoAll(const void *sendbuff,
                              void *recvbuff,
                              size_t count,
                              flagosDataType_t datatype,
                              flagosComm_t comm,
                              flagosStream_t stream);

/**
 * Every rank sends sendcounts[j] elements, which start at element sdispls[j] of its sendbuff, to
 * rank j; it receives recvcounts[i] elements of rank i at element rdispls[i] of its recvbuff.
 * sendcounts[j] on rank i must equal recvcounts[i] on rank j.
 *
 * Buffers: as long as counts and displacements reach. Not in place: the buffers must not overlap,
 * nor the blocks of recvbuff. Either may be NULL only if all its counts are 0. The four arrays have
 * one entry per rank, lie in host memory, are read during the call only, and may not be NULL.
 * Counts and displacements are in elements, not bytes.
 *
 * @param sendbuff    the blocks to send.
 * @param sendcounts  elements to send, for each rank.
 * @param sdispls     where each block starts in sendbuff.
 * @param recvbuff    receives the blocks.
 * @param recvcounts  elements to receive, of each rank.
 * @param rdispls     where each block starts in recvbuff.
 * @param datatype    the same on all ranks.
 * @param comm        the communicator.
 * @param stream      see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: FlagCX's.
 */
flagosResult_t flagosAlltoAllv(const void *sendbuff,
                               const size_t *sendcounts,
                               const size_t *sdispls,
                               void *recvbuff,
                               const size_t *recvcounts,
                               const size_t *rdispls,
                               flagosDataType_t datatype,
                               flagosComm_t comm,
                               flagosStream_t stream);

/**
 * Completes on no rank before every rank has called it. Moves no data. On a vendor's tier it is
 * ordered on the stream like any operation: the host does not wait until it synchronises the stream.
 *
 * @param comm    the communicator.
 * @param stream  see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted. In a group it is
 * flagosInvalidUsage; on a stream that is being captured flagosNotSupported.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: ours. FlagCX's flagcxBarrier also synchronises the stream.
 */
flagosResult_t flagosBarrier(flagosComm_t comm,
                             flagosStream_t stream);

/**
 * Sends count elements to a peer, which must call flagosRecv with the same count and datatype.
 * Messages between two ranks keep their order.
 *
 * Two ranks that exchange data must put both calls into a group, else each may wait for the other.
 * To send to itself a rank puts flagosSend and flagosRecv into one group; alone it is
 * flagosInvalidUsage.
 *
 * On the host tier flagosRecv is flagosInvalidUsage if it expects another count or datatype than was sent.
 * So is flagosSend, unless the message is complete before it is received: on several machines one of at
 * most 8 KiB; where ranks share memory one of at most 128 KiB that is sent outside a group, or alone in
 * its group, while a message waits that its sender has not received. Then the receiver alone learns.
 *
 * Buffers: count elements. sendbuff may be NULL only if count is 0.
 *
 * @param sendbuff  the data.
 * @param count     number of elements.
 * @param datatype  the same on both sides.
 * @param peer      rank of the receiver in comm.
 * @param comm      the communicator.
 * @param stream    see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosSend(const void *sendbuff,
                          size_t count,
                          flagosDataType_t datatype,
                          int peer,
                          flagosComm_t comm,
                          flagosStream_t stream);

/**
 * Receives count elements of a peer, which must call flagosSend with the same count and datatype.
 * See flagosSend for groups, for a rank that sends to itself, and for who learns of a message that was
 * not expected.
 *
 * Buffers: count elements. recvbuff may be NULL only if count is 0.
 *
 * @param recvbuff  receives the data.
 * @param count     number of elements.
 * @param datatype  the same on both sides.
 * @param peer      rank of the sender in comm.
 * @param comm      the communicator.
 * @param stream    see "Streams" above.
 *
 * Threads: one operation at a time on comm; flagosCommAbort excepted.
 *
 * @return the results under "Operations" above.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosRecv(void *recvbuff,
                          size_t count,
                          flagosDataType_t datatype,
                          int peer,
                          flagosComm_t comm,
                          flagosStream_t stream);

/**
 * Opens a group on the calling thread. Calls of operations, inits and splits in it only record; the
 * outermost flagosGroupEnd starts them together. Groups nest. Until the outermost end, buffers must
 * stay as they are and the places where inits will write their handle must stay valid.
 *
 * Threads: the group belongs to the calling thread.
 *
 * @return flagosSuccess; flagosInvalidUsage (nested too deep); flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosGroupStart(void);

/**
 * Closes a group of the calling thread. The outermost end starts everything that was recorded, and
 * writes the handles of inits and splits: each is valid, or NULL if the end fails. If a call in the
 * group was refused, nothing is started and the end returns the first error. The thread is outside
 * any group afterwards, whatever the result.
 *
 * On the host tier a message that its receiver did not expect makes the end fail on both sides, but for
 * those of which the receiver alone learns; see flagosSend.
 *
 * Threads: the one that called flagosGroupStart.
 *
 * @return flagosSuccess; flagosInProgress (a member does not block); flagosInvalidUsage (no group is
 * open); else the first error of a member, which can be any that the calls in the group return.
 *
 * Semantics: NCCL's; a refused call makes the end fail as a whole.
 */
flagosResult_t flagosGroupEnd(void);

/**
 * Closes a group of the calling thread without starting anything, and estimates how long it would
 * have taken.
 *
 * @param simInfo  in: its size, magic and version (FLAGOS_SIM_INFO_INITIALIZER); out: the estimate in
 *                 microseconds; 0 on failure. Not NULL; if it is refused, the group stays open.
 *
 * Threads: the one that called flagosGroupStart.
 *
 * @return flagosSuccess; flagosInvalidArgument (simInfo is NULL or not initialised);
 * flagosInvalidUsage (no group is open); flagosNotSupported (the tier can't); else the first error of
 * a member.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosGroupSimulateEnd(struct flagosSimInfo_t *simInfo);

/**
 * Allocates memory that operations can use best: device memory of the current device fit for the
 * vendor's zero-copy paths, or on a machine without a driver memory that the other processes of the
 * machine can use in place, which makes large operations faster. Aligned to at least 256 bytes. Contents
 * are undefined.
 *
 * Without a driver, a child of a fork shares the memory: what one writes the other sees, and only the
 * process that allocated it can free it. That ends for the buffer of an all-reduce that has failed while
 * another rank's process was stopped in it: the child then sees what that rank may still write, and
 * this process does not. Where the kernel refuses such memory, it is ordinary memory.
 *
 * @param ptr   receives the memory; NULL on failure. Not NULL.
 * @param size  bytes, at least 1.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (ptr is NULL, size is 0); flagosSystemError (no
 * memory); flagosNotSupported; flagosUnboundDevice, flagosUnhandledDeviceError,
 * flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's ncclMemAlloc.
 */
flagosResult_t flagosMemAlloc(void **ptr,
                              size_t size);

/**
 * Frees memory of flagosMemAlloc. Nothing that uses it may be under way. Communicators that used it may
 * live on.
 *
 * @param ptr  the memory; NULL does nothing.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (not of flagosMemAlloc, or freed before);
 * flagosUnhandledDeviceError, flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's ncclMemFree.
 */
flagosResult_t flagosMemFree(void *ptr);

/**
 * Registers a buffer with a communicator, which lets the vendor's library avoid copies. Local. Only
 * a hint on the host tier.
 *
 * @param comm    the communicator.
 * @param buff    the buffer. Not NULL. Must outlive the registration.
 * @param size    bytes, at least 1.
 * @param handle  receives the registration; NULL on failure. Not NULL.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted.
 *
 * @return flagosSuccess; flagosInvalidArgument (a NULL, size is 0, no live communicator);
 * flagosInvalidUsage (comm has failed); flagosNotSupported (the tier can't);
 * flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommRegister(flagosComm_t comm, void *buff, size_t size, void **handle);

/**
 * Ends a registration. Nothing that uses the buffer may be under way.
 *
 * @param comm    the communicator.
 * @param handle  what flagosCommRegister gave. Not NULL.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted.
 *
 * @return flagosSuccess; flagosInvalidArgument (no live communicator, no registration of it);
 * flagosNotSupported; flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommDeregister(flagosComm_t comm, void *handle);

/**
 * Registers a buffer of every rank as one window. Collective: all ranks call it in the same order,
 * with the same flags, and it succeeds on all or fails on all. On the host tier it changes nothing: memory
 * of flagosMemAlloc is used in place with or without a window.
 *
 * @param comm      the communicator.
 * @param buff      this rank's buffer, of flagosMemAlloc. Not NULL. Must outlive the window.
 * @param size      bytes, at least 1.
 * @param win       receives the window; NULL on failure. Not NULL.
 * @param winFlags  FLAGOS_WIN_DEFAULT or FLAGOS_WIN_COLL_SYMMETRIC.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted.
 *
 * @return flagosSuccess; flagosInvalidArgument (a NULL, size is 0, unknown flags, no live
 * communicator); flagosInvalidUsage (comm has failed, the ranks disagree); flagosNotSupported (the
 * tier can't); flagosTimeout, flagosRemoteError, flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's; the vote is this library's.
 */
flagosResult_t flagosCommWindowRegister(flagosComm_t comm,
                                        void *buff,
                                        size_t size,
                                        flagosWindow_t *win,
                                        int winFlags);

/**
 * Ends a window. Collective. Nothing that uses it may be under way.
 *
 * @param comm  the communicator.
 * @param win   what flagosCommWindowRegister gave. Not NULL.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted.
 *
 * @return flagosSuccess; flagosInvalidArgument (no live communicator, no window of it);
 * flagosNotSupported; flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosCommWindowDeregister(flagosComm_t comm, flagosWindow_t win);

/**
 * Makes an operator that multiplies this rank's contribution by a scalar before it is summed. It
 * belongs to comm and works with this datatype only.
 *
 * @param op         receives the operator; 0 on failure. Not NULL.
 * @param scalar     one element of datatype. Not NULL. With flagosScalarHostImmediate it lies in host
 *                   memory and is copied by the call; with flagosScalarDevice it lies in device memory
 *                   and must stay until the last operation with op is complete.
 * @param datatype   type of the scalar and of the operations with op.
 * @param residence  a flagosScalarResidenceCode.
 * @param comm       the communicator.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted.
 *
 * @return flagosSuccess; flagosInvalidArgument (a NULL, datatype or residence out of range, no live
 * communicator); flagosInvalidUsage (comm has failed); flagosNotSupported (the tier can't);
 * flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosRedOpCreatePreMulSum(flagosRedOp_t *op,
                                          const void *scalar,
                                          flagosDataType_t datatype,
                                          flagosScalarResidence_t residence,
                                          flagosComm_t comm);

/**
 * Frees an operator. Operations with it that are enqueued stay valid.
 *
 * @param op    the operator of flagosRedOpCreatePreMulSum.
 * @param comm  the communicator that it was made for.
 *
 * Threads: not while another call runs on comm, flagosCommAbort excepted.
 *
 * @return flagosSuccess; flagosInvalidArgument (no live communicator, one of the built-in operators,
 * no operator of comm); flagosUnhandledCclError, flagosInternalError.
 *
 * Semantics: NCCL's.
 */
flagosResult_t flagosRedOpDestroy(flagosRedOp_t op,
                                  flagosComm_t comm);

/**
 * Asks the driver which device is current on the calling thread, now. Nothing is cached.
 *
 * @param device  receives the index; 0 on failure. Not NULL.
 *
 * Threads: any; the answer is the calling thread's.
 *
 * @return flagosSuccess; flagosInvalidArgument (device is NULL); flagosUnboundDevice (the driver says
 * that the thread has none); flagosNotSupported (no driver); flagosUnhandledDeviceError,
 * flagosInternalError.
 *
 * Semantics: cudaGetDevice's.
 */
flagosResult_t flagosGetDevice(int *device);

/**
 * Makes a device current on the calling thread.
 *
 * @param device  the index, 0 to the number of devices less one.
 *
 * Threads: any; affects the calling thread.
 *
 * @return flagosSuccess; flagosInvalidArgument (no such device); flagosNotSupported (no driver);
 * flagosUnhandledDeviceError, flagosInternalError.
 *
 * Semantics: cudaSetDevice's.
 */
flagosResult_t flagosSetDevice(int device);

/**
 * Number of devices that the driver shows this process.
 *
 * @param count  receives the number, 0 on a machine without a driver and on failure. Not NULL.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (count is NULL); flagosUnhandledDeviceError,
 * flagosInternalError.
 *
 * Semantics: cudaGetDeviceCount's, but no device is no error.
 */
flagosResult_t flagosGetDeviceCount(int *count);

/**
 * Makes a stream on the current device (one that does not wait for the vendor's default stream), or
 * a host stream on a machine without a driver.
 *
 * @param stream  receives the stream; NULL on failure. Not NULL. Free it with flagosStreamDestroy.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (stream is NULL); flagosUnboundDevice,
 * flagosUnhandledDeviceError, flagosSystemError, flagosNotSupported, flagosInternalError.
 *
 * Semantics: cudaStreamCreateWithFlags(cudaStreamNonBlocking)'s.
 */
flagosResult_t flagosStreamCreate(flagosStream_t *stream);

/**
 * Frees a stream. What is on it is still completed.
 *
 * @param stream  the stream. Not NULL: the default stream can't be freed.
 *
 * Threads: any; nobody else may use the stream.
 *
 * @return flagosSuccess; flagosInvalidArgument (NULL, no live host stream);
 * flagosUnhandledDeviceError, flagosInternalError.
 *
 * Semantics: cudaStreamDestroy's. A vendor's driver follows the handle: one that is not a stream is
 * undefined there.
 */
flagosResult_t flagosStreamDestroy(flagosStream_t stream);

/**
 * Tells whether everything on a stream is done, without waiting.
 *
 * @param stream  the stream; NULL is the default stream.
 *
 * Threads: any.
 *
 * @return flagosSuccess (done); flagosInProgress (not yet); flagosInvalidArgument (no live host
 * stream); flagosUnhandledDeviceError; on a host stream the first error of an operation on it;
 * flagosInternalError.
 *
 * Semantics: cudaStreamQuery's.
 */
flagosResult_t flagosStreamQuery(flagosStream_t stream);

/**
 * Waits until everything on a stream is done.
 *
 * @param stream  the stream; NULL is the default stream.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (no live host stream); flagosUnhandledDeviceError; on
 * a host stream the first error of an operation on it; flagosInternalError.
 *
 * Semantics: cudaStreamSynchronize's.
 */
flagosResult_t flagosStreamSynchronize(flagosStream_t stream);

/**
 * Lets everything that is put on a stream from now on wait for an event. The host does not wait.
 *
 * @param stream  the stream; NULL is the default stream.
 * @param event   the event. Not NULL.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (event is NULL, no live host stream or event);
 * flagosUnhandledDeviceError, flagosInternalError.
 *
 * Semantics: cudaStreamWaitEvent's.
 */
flagosResult_t flagosStreamWaitEvent(flagosStream_t stream, flagosEvent_t event);

/**
 * Makes an event.
 *
 * @param event  receives the event; NULL on failure. Not NULL. Free it with flagosEventDestroy.
 * @param flags  FLAGOS_EVENT_DEFAULT or FLAGOS_EVENT_DISABLE_TIMING.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (event is NULL, unknown flags); flagosUnboundDevice,
 * flagosUnhandledDeviceError, flagosSystemError, flagosNotSupported, flagosInternalError.
 *
 * Semantics: cudaEventCreateWithFlags's, FlagCX's flags.
 */
flagosResult_t flagosEventCreate(flagosEvent_t *event, int flags);

/**
 * Frees an event.
 *
 * @param event  the event. Not NULL.
 *
 * Threads: any; nobody else may use the event.
 *
 * @return flagosSuccess; flagosInvalidArgument (NULL, no live event); flagosUnhandledDeviceError,
 * flagosInternalError.
 *
 * Semantics: cudaEventDestroy's.
 */
flagosResult_t flagosEventDestroy(flagosEvent_t event);

/**
 * Records an event on a stream: it is reached when everything before it is done.
 *
 * @param event   the event. Not NULL.
 * @param stream  the stream; NULL is the default stream.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (event is NULL, no live host stream or event);
 * flagosUnhandledDeviceError, flagosInternalError.
 *
 * Semantics: cudaEventRecord's.
 */
flagosResult_t flagosEventRecord(flagosEvent_t event, flagosStream_t stream);

/**
 * Tells whether an event is reached, without waiting. An event that was never recorded is.
 *
 * @param event  the event. Not NULL.
 *
 * Threads: any.
 *
 * @return flagosSuccess (reached); flagosInProgress (not yet); flagosInvalidArgument (NULL, no live
 * event); flagosUnhandledDeviceError, flagosInternalError.
 *
 * Semantics: cudaEventQuery's.
 */
flagosResult_t flagosEventQuery(flagosEvent_t event);

/**
 * Waits until an event is reached.
 *
 * @param event  the event. Not NULL.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (NULL, no live event); flagosUnhandledDeviceError,
 * flagosInternalError.
 *
 * Semantics: cudaEventSynchronize's.
 */
flagosResult_t flagosEventSynchronize(flagosEvent_t event);

/**
 * Time between two events that are reached, in milliseconds.
 *
 * @param milliseconds  receives the time; 0 on failure. Not NULL.
 * @param start         the earlier event. Not NULL. Made with FLAGOS_EVENT_DEFAULT.
 * @param end           the later event. Not NULL. Made with FLAGOS_EVENT_DEFAULT.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInProgress (not reached yet); flagosInvalidArgument (a NULL, no live
 * event, an event without timing); flagosUnhandledDeviceError, flagosInternalError.
 *
 * Semantics: cudaEventElapsedTime's.
 */
flagosResult_t flagosEventElapsedTime(float *milliseconds, flagosEvent_t start, flagosEvent_t end);

/**
 * Copies size bytes on a stream. The ranges must not overlap.
 *
 * @param dst     the destination. NULL only if size is 0.
 * @param src     the source. NULL only if size is 0.
 * @param size    bytes.
 * @param kind    a flagosMemcpyCode; flagosMemcpyDefault lets the driver look at the pointers.
 * @param stream  the stream; NULL is the default stream (blocking on a machine without a driver).
 *
 * Threads: any. Both ranges must stay until the stream has passed the copy.
 *
 * @return flagosSuccess; flagosInvalidArgument (a NULL that is not allowed, an unknown kind, no live
 * host stream); flagosUnhandledDeviceError, flagosNotSupported, flagosInternalError.
 *
 * Semantics: cudaMemcpyAsync's, FlagCX's kinds.
 */
flagosResult_t flagosMemcpyAsync(void *dst,
                                 const void *src,
                                 size_t size,
                                 flagosMemcpyType_t kind,
                                 flagosStream_t stream);

/**
 * Fills size bytes with a byte on a stream.
 *
 * @param ptr     the destination. NULL only if size is 0.
 * @param value   the byte; only its low 8 bits count.
 * @param size    bytes.
 * @param stream  the stream; NULL is the default stream (blocking on a machine without a driver).
 *
 * Threads: any. The range must stay until the stream has passed the fill.
 *
 * @return flagosSuccess; flagosInvalidArgument (a NULL that is not allowed, no live host stream);
 * flagosUnhandledDeviceError, flagosNotSupported, flagosInternalError.
 *
 * Semantics: cudaMemsetAsync's.
 */
flagosResult_t flagosMemsetAsync(void *ptr, int value, size_t size, flagosStream_t stream);

/**
 * Asks the driver what a pointer points to. The memory itself is not touched, so any value will do;
 * memory that the driver does not know is flagosMemoryUnregistered, device -1.
 *
 * @param attributes  in: its size (FLAGOS_POINTER_ATTRIBUTES_INITIALIZER); out: the answer, all zero
 *                    behind size on failure. Not NULL.
 * @param ptr         the pointer. Not NULL.
 *
 * Threads: any.
 *
 * @return flagosSuccess; flagosInvalidArgument (a NULL, a wrong size); flagosUnhandledDeviceError,
 * flagosInternalError.
 *
 * Semantics: cudaPointerGetAttributes's.
 */
flagosResult_t flagosPointerGetAttributes(struct flagosPointerAttributes_t *attributes,
                                          const void *ptr);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FLAGOS_COMM_H */
