/*
 * flagos_comm.hpp - flagos_comm.h for C++17: handles that free themselves, errors that are thrown.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Header-only. Nothing here allocates on the path of an operation; a text is made only when an
 * error is thrown. See flagos_comm.h for what the functions do.
 */
#ifndef FLAGOS_COMM_HPP
#define FLAGOS_COMM_HPP

#include "flagos_comm.h"

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace flagos {

/** What a call that failed said: its code and its text. */
class Error : public std::runtime_error {
public:
    Error(flagosResult_t code, const std::string &text) : std::runtime_error(text), code_(code) {}

    /** A flagosResultCode. */
    flagosResult_t code() const noexcept { return code_; }

private:
    flagosResult_t code_;
};

namespace detail {

[[noreturn]] inline void fail(flagosResult_t code, flagosComm_t comm)
{
    const char *text = flagosGetLastError(comm);
    throw Error(code, text[0] != 0 ? text : flagosGetErrorString(code));
}

} // namespace detail

/**
 * Throws unless the call succeeded. True: done. False: flagosInProgress, ask again later.
 * comm is the communicator that the call was about, if any.
 */
inline bool check(flagosResult_t code, flagosComm_t comm = nullptr)
{
    if (code == flagosSuccess) {
        return true;
    }
    if (code == flagosInProgress) {
        return false;
    }
    detail::fail(code, comm);
}

/** Version of the library as one number. */
inline int version()
{
    int version = 0;
    check(flagosGetVersion(&version));
    return version;
}

/** Device that the driver says is current on this thread. */
inline int current_device()
{
    int device = 0;
    check(flagosGetDevice(&device));
    return device;
}

inline void set_device(int device) { check(flagosSetDevice(device)); }

inline int device_count()
{
    int count = 0;
    check(flagosGetDeviceCount(&count));
    return count;
}

namespace detail {

/* What the library hands out as snprintf does. */
template <typename Call>
std::string text(Call call)
{
    std::size_t needed = 0;
    std::string text;
    check(call(nullptr, 0, &needed));
    while (needed > text.size() + 1) { // it may have grown meanwhile
        text.resize(needed - 1);
        check(call(&text[0], text.size() + 1, &needed));
    }
    text.resize(std::strlen(text.c_str()));
    return text;
}

} // namespace detail

/** Key of the vendor in use, "host" without one. */
inline std::string vendor() { return detail::text(flagosGetVendor); }

/** Which libraries were considered and why each was taken or not. */
inline std::string load_report() { return detail::text(flagosGetLoadReport); }

/** The load report as JSON. */
inline std::string load_report_json() { return detail::text(flagosGetLoadReportJson); }

/** Names one communicator to be. */
class UniqueId {
public:
    /** Makes one; its rendezvous is served by this process. */
    static UniqueId make()
    {
        UniqueId id;
        check(flagosGetUniqueId(&id.id_));
        return id;
    }

    /** One that another process made. */
    static UniqueId from_bytes(const void *bytes)
    {
        UniqueId id;
        std::memcpy(&id.id_, bytes, sizeof id.id_);
        return id;
    }

    const void *data() const noexcept { return &id_; }
    static constexpr std::size_t size() noexcept { return FLAGOS_UNIQUE_ID_BYTES; }
    const flagosUniqueId *get() const noexcept { return &id_; }

private:
    UniqueId() : id_{} {}
    flagosUniqueId id_;
};

/** A stream that is freed with the object. */
class Stream {
public:
    Stream() { check(flagosStreamCreate(&stream_)); }
    ~Stream() { reset(); }
    Stream(Stream &&other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    Stream &operator=(Stream &&other) noexcept
    {
        if (this != &other) {
            reset();
            stream_ = std::exchange(other.stream_, nullptr);
        }
        return *this;
    }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    void synchronize() const { check(flagosStreamSynchronize(stream_)); }
    /** Whether everything on it is done. */
    bool done() const { return check(flagosStreamQuery(stream_)); }
    void wait(flagosEvent_t event) const { check(flagosStreamWaitEvent(stream_, event)); }
    flagosStream_t get() const noexcept { return stream_; }
    operator flagosStream_t() const noexcept { return stream_; }

private:
    void reset() noexcept
    {
        if (stream_ != nullptr) {
            flagosStreamDestroy(std::exchange(stream_, nullptr));
        }
    }
    flagosStream_t stream_ = nullptr;
};

/** An event that is freed with the object. */
class Event {
public:
    explicit Event(int flags = FLAGOS_EVENT_DEFAULT) { check(flagosEventCreate(&event_, flags)); }
    ~Event() { reset(); }
    Event(Event &&other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Event &operator=(Event &&other) noexcept
    {
        if (this != &other) {
            reset();
            event_ = std::exchange(other.event_, nullptr);
        }
        return *this;
    }
    Event(const Event &) = delete;
    Event &operator=(const Event &) = delete;

    void record(flagosStream_t stream) const { check(flagosEventRecord(event_, stream)); }
    bool done() const { return check(flagosEventQuery(event_)); }
    void synchronize() const { check(flagosEventSynchronize(event_)); }
    /** Milliseconds since another event. */
    float since(const Event &start) const
    {
        float milliseconds = 0;
        check(flagosEventElapsedTime(&milliseconds, start.event_, event_));
        return milliseconds;
    }
    flagosEvent_t get() const noexcept { return event_; }
    operator flagosEvent_t() const noexcept { return event_; }

private:
    void reset() noexcept
    {
        if (event_ != nullptr) {
            flagosEventDestroy(std::exchange(event_, nullptr));
        }
    }
    flagosEvent_t event_ = nullptr;
};

/**
 * A group. Call end() to start what was recorded; it throws what any call in it failed with. An
 * object that dies without it closes the group without throwing, so that the thread is clean; if an
 * exception unwinds through a group, what was recorded so far is started all the same.
 */
class Group {
public:
    Group() { check(flagosGroupStart()); }
    ~Group()
    {
        if (open_) {
            flagosGroupEnd();
        }
    }
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;

    /** True: started. False: in progress. */
    bool end()
    {
        open_ = false;
        return check(flagosGroupEnd());
    }

private:
    bool open_ = true;
};

/** A communicator that is destroyed with the object. */
class Communicator {
public:
    /** No communicator. */
    Communicator() noexcept = default;

    /** Joins the communicator that an id names. */
    Communicator(int nranks, const UniqueId &id, int rank, const flagosConfig_t *config = nullptr)
    {
        check(flagosCommInitRankConfig(&comm_, nranks, id.get(), rank, config));
    }

    /** Takes over a handle. */
    static Communicator adopt(flagosComm_t comm) noexcept
    {
        Communicator communicator;
        communicator.comm_ = comm;
        return communicator;
    }

    ~Communicator() { reset(); }
    Communicator(Communicator &&other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
    Communicator &operator=(Communicator &&other) noexcept
    {
        if (this != &other) {
            reset();
            comm_ = std::exchange(other.comm_, nullptr);
        }
        return *this;
    }
    Communicator(const Communicator &) = delete;
    Communicator &operator=(const Communicator &) = delete;

    flagosComm_t get() const noexcept { return comm_; }
    explicit operator bool() const noexcept { return comm_ != nullptr; }
    /** Gives the handle away. */
    flagosComm_t release() noexcept { return std::exchange(comm_, nullptr); }

    int size() const
    {
        int value = 0;
        check(flagosCommCount(comm_, &value), comm_);
        return value;
    }
    int rank() const
    {
        int value = 0;
        check(flagosCommUserRank(comm_, &value), comm_);
        return value;
    }
    int device() const
    {
        int value = 0;
        check(flagosCommGetDeviceNumber(comm_, &value), comm_);
        return value;
    }
    std::string name() const
    {
        return detail::text([this](char *buffer, std::size_t size, std::size_t *needed) {
            return flagosCommGetName(comm_, buffer, size, needed);
        });
    }
    flagosCommInfo_t info() const
    {
        flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;
        check(flagosCommGetInfo(comm_, &info), comm_);
        return info;
    }
    /** How it is: flagosSuccess, flagosInProgress, or what broke it. */
    flagosResult_t async_error() const
    {
        flagosResult_t state = flagosSuccess;
        check(flagosCommGetAsyncError(comm_, &state), comm_);
        return state;
    }

    Communicator split(int color, int key, const flagosConfig_t *config = nullptr) const
    {
        Communicator child;
        check(flagosCommSplit(comm_, color, key, &child.comm_, config), comm_);
        return child;
    }
    Communicator shrink(const std::vector<int> &exclude, int flags = FLAGOS_SHRINK_DEFAULT,
                        const flagosConfig_t *config = nullptr) const
    {
        Communicator child;
        check(flagosCommShrink(comm_, exclude.data(), static_cast<int>(exclude.size()), &child.comm_,
                               config, flags),
              comm_);
        return child;
    }
    /** What the ranks agreed on, the same on all of them. */
    struct Agreement {
        int lowest = 0;
        std::vector<int> levels;
        std::string text;
    };
    /** Tells every rank's level and reason to all; every rank must call it. */
    Agreement agree(int level, const std::string &reason = std::string()) const
    {
        Agreement agreement;
        agreement.levels.resize(static_cast<std::size_t>(size()));
        /* The text of a second call would be that of a second agreement: one that is too long is cut. */
        std::vector<char> text(16384);
        check(flagosCommAgree(comm_, level, reason.c_str(), &agreement.lowest, agreement.levels.data(),
                              text.data(), text.size(), nullptr),
              comm_);
        agreement.text = text.data();
        return agreement;
    }
    bool finalize() { return check(flagosCommFinalize(comm_), comm_); }
    /** Ends it now, and says what went wrong, which the destructor can't. */
    void destroy() { check(flagosCommDestroy(std::exchange(comm_, nullptr))); }
    /** Ends everything on it and frees it. */
    void abort() { check(flagosCommAbort(std::exchange(comm_, nullptr))); }
    bool revoke(int flags = FLAGOS_REVOKE_DEFAULT)
    {
        return check(flagosCommRevoke(comm_, flags), comm_);
    }

    bool all_reduce(const void *send, void *recv, std::size_t count, flagosDataType_t type,
                    flagosRedOp_t op, flagosStream_t stream = nullptr) const
    {
        return check(flagosAllReduce(send, recv, count, type, op, comm_, stream), comm_);
    }
    bool broadcast(const void *send, void *recv, std::size_t count, flagosDataType_t type, int root,
                   flagosStream_t stream = nullptr) const
    {
        return check(flagosBroadcast(send, recv, count, type, root, comm_, stream), comm_);
    }
    bool reduce(const void *send, void *recv, std::size_t count, flagosDataType_t type,
                flagosRedOp_t op, int root, flagosStream_t stream = nullptr) const
    {
        return check(flagosReduce(send, recv, count, type, op, root, comm_, stream), comm_);
    }
    bool all_gather(const void *send, void *recv, std::size_t count, flagosDataType_t type,
                    flagosStream_t stream = nullptr) const
    {
        return check(flagosAllGather(send, recv, count, type, comm_, stream), comm_);
    }
    bool reduce_scatter(const void *send, void *recv, std::size_t count, flagosDataType_t type,
                        flagosRedOp_t op, flagosStream_t stream = nullptr) const
    {
        return check(flagosReduceScatter(send, recv, count, type, op, comm_, stream), comm_);
    }
    bool gather(const void *send, void *recv, std::size_t count, flagosDataType_t type, int root,
                flagosStream_t stream = nullptr) const
    {
        return check(flagosGather(send, recv, count, type, root, comm_, stream), comm_);
    }
    bool scatter(const void *send, void *recv, std::size_t count, flagosDataType_t type, int root,
                 flagosStream_t stream = nullptr) const
    {
        return check(flagosScatter(send, recv, count, type, root, comm_, stream), comm_);
    }
    bool all_to_all(const void *send, void *recv, std::size_t count, flagosDataType_t type,
                    flagosStream_t stream = nullptr) const
    {
        return check(flagosAlltoAll(send, recv, count, type, comm_, stream), comm_);
    }
    bool all_to_allv(const void *send, const std::size_t *send_counts, const std::size_t *send_displs,
                     void *recv, const std::size_t *recv_counts, const std::size_t *recv_displs,
                     flagosDataType_t type, flagosStream_t stream = nullptr) const
    {
        return check(flagosAlltoAllv(send, send_counts, send_displs, recv, recv_counts, recv_displs,
                                     type, comm_, stream),
                     comm_);
    }
    bool send(const void *data, std::size_t count, flagosDataType_t type, int peer,
              flagosStream_t stream = nullptr) const
    {
        return check(flagosSend(data, count, type, peer, comm_, stream), comm_);
    }
    bool recv(void *data, std::size_t count, flagosDataType_t type, int peer,
              flagosStream_t stream = nullptr) const
    {
        return check(flagosRecv(data, count, type, peer, comm_, stream), comm_);
    }
    bool barrier(flagosStream_t stream = nullptr) const
    {
        return check(flagosBarrier(comm_, stream), comm_);
    }

    /**
     * Joins in a group. The handle is written by the group's end into this object, which must
     * neither move nor die before.
     */
    void init_in_group(int nranks, const UniqueId &id, int rank, const flagosConfig_t *config = nullptr)
    {
        reset();
        check(flagosCommInitRankConfig(&comm_, nranks, id.get(), rank, config));
    }

private:
    void reset() noexcept
    {
        if (comm_ != nullptr) {
            flagosCommDestroy(std::exchange(comm_, nullptr));
        }
    }
    flagosComm_t comm_ = nullptr;
};

/** All ranks of a communicator in this process, one per device. */
inline std::vector<Communicator> init_all(const std::vector<int> &devices)
{
    std::vector<flagosComm_t> handles(devices.size());
    std::vector<Communicator> communicators;
    communicators.reserve(devices.size());
    check(flagosCommInitAll(handles.data(), static_cast<int>(devices.size()), devices.data()));
    for (flagosComm_t handle : handles) {
        communicators.push_back(Communicator::adopt(handle));
    }
    return communicators;
}

/** All ranks of a communicator in this process, on devices 0 to count-1. */
inline std::vector<Communicator> init_all(int count)
{
    std::vector<int> devices;
    for (int device = 0; device < count; device++) {
        devices.push_back(device);
    }
    return init_all(devices);
}

} // namespace flagos

#endif /* FLAGOS_COMM_HPP */
