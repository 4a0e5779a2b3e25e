/* A UCC whose only collective is the broadcast among two ranks, over TCP. Like UCC it waits for nobody who has died,
 * says that what a broken connection has cut is done, and refuses to give an operation under way back.
 * Its log goes to standard output, unless UCC_LOG_FILE says stderr. Beside the knobs of knobs.h: FAKE_UCC_BREAK=N closes the connection in the middle of the first message of at least
 * N bytes, on both sides of which the processes live on. UCX_NET_DEVICES names the interface, else it is loopback. */
#define _GNU_SOURCE
#include "abi/ucc.h"
#include "knobs.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#ifndef FAKE_NCCL_VERSION_DEFAULT
#define FAKE_NCCL_VERSION_DEFAULT 10900
#endif

static void fk_register_site(struct fk_site *site)
{
    atomic_store(&site->known, 1);
}

static int fk_log_device(void)
{
    return -1;
}

static void fk_check_alive(const char *name)
{
    (void)name;
}

#define EXPORT __attribute__((visibility("default")))
/* The begin of a function that answers with a status, and its end. */
#define ENTER(function)                                                                                                \
    static struct fk_site site = {.name = #function};                                                                  \
    int made = fk_enter(&site, NULL, 0);                                                                               \
    if (made)                                                                                                          \
        return fk_log(#function, made, "%s", ""), made
#define ANSWER(function, status) return fk_log(#function, status, "%s", ""), status

struct request {
    struct ucc_coll_req base;
    struct team *team;
    bool sends, posted;
    int peer;
    uint16_t tag;
    char *buffer;
    size_t bytes, moved;
    struct request *next;
};

/* Goes before a message. */
struct header {
    uint64_t tag, bytes;
};

/* A message that nobody had asked for when it came. */
struct early {
    struct header header;
    char *data;
    struct early *next;
};

struct peer {
    int fd;
    bool dead;
    /* Sends in their order, of which the first is under way; the header is the first part of it. */
    struct request *sends, **last_send;
    size_t header_sent;
    struct header out;
    /* Receives in their order. */
    struct request *recvs, **last_recv;
    /* What comes: its header, and then either a receive or a message that is early. */
    struct header in;
    size_t header_got, got;
    struct request *into;
    struct early *early_now, *early, **last_early;
};

struct context {
    int listener;
    struct sockaddr_in address;
    struct team *team;
};

struct team {
    struct context *context;
    ucc_oob_coll_t oob;
    int rank, ranks, state, accepted;
    struct sockaddr_in *addresses;
    void *gathering;
    struct peer *peers;
    struct pollfd *polled;
};

EXPORT void ucc_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    unsigned code = FAKE_NCCL_VERSION_DEFAULT;
    *major = code / 10000;
    *minor = code / 100 % 100;
    *release = code % 100;
}

EXPORT const char *ucc_status_string(ucc_status_t status)
{
    switch (status) {
    case UCC_OK: return "Success";
    case UCC_INPROGRESS: return "Operation in progress";
    case UCC_ERR_NOT_SUPPORTED: return "Operation is not supported";
    case UCC_ERR_NO_RESOURCE: return "Resources are not available for the operation";
    case UCC_ERR_TIMED_OUT: return "Timeout expired";
    default: return "Error";
    }
}

EXPORT ucc_status_t ucc_lib_config_read(const char *prefix, const char *file, ucc_lib_config_h *config)
{
    ENTER(ucc_lib_config_read);
    (void)prefix, (void)file;
    *config = malloc(1);
    ANSWER(ucc_lib_config_read, UCC_OK);
}

EXPORT void ucc_lib_config_release(ucc_lib_config_h config)
{
    free(config);
}

EXPORT ucc_status_t ucc_init_version(unsigned major, unsigned minor, const ucc_lib_params_t *params,
                                     const ucc_lib_config_h config, ucc_lib_h *lib)
{
    ENTER(ucc_init_version);
    /* Calls come from several threads, and the lowest interface with active sets is enough. */
    if (major != 1 || minor != 2 || !(params->mask & UCC_LIB_PARAM_FIELD_THREAD_MODE) ||
        params->thread_mode != UCC_THREAD_MULTIPLE || !config)
        ANSWER(ucc_init_version, UCC_ERR_INVALID_PARAM);
    const char *file = getenv("UCC_LOG_FILE"), *level = getenv("UCC_LOG_LEVEL");
    if (level && !strcmp(level, "info")) {
        fprintf(file && !strcmp(file, "stderr") ? stderr : stdout, "UCC  INFO  version: stand-in\n");
        fflush(stdout);
    }
    *lib = malloc(1);
    ANSWER(ucc_init_version, UCC_OK);
}

EXPORT ucc_status_t ucc_finalize(ucc_lib_h lib)
{
    ENTER(ucc_finalize);
    free(lib);
    ANSWER(ucc_finalize, UCC_OK);
}

EXPORT ucc_status_t ucc_context_config_read(ucc_lib_h lib, const char *file, ucc_context_config_h *config)
{
    ENTER(ucc_context_config_read);
    (void)lib, (void)file;
    *config = malloc(1);
    ANSWER(ucc_context_config_read, UCC_OK);
}

EXPORT void ucc_context_config_release(ucc_context_config_h config)
{
    free(config);
}

static struct in_addr interface_address(void)
{
    struct in_addr found = {htonl(INADDR_LOOPBACK)};
    const char *wanted = getenv("UCX_NET_DEVICES");
    struct ifaddrs *all;
    if (!wanted || getifaddrs(&all))
        return found;
    for (struct ifaddrs *one = all; one; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && !strcmp(one->ifa_name, wanted))
            found = ((struct sockaddr_in *)(void *)one->ifa_addr)->sin_addr;
    freeifaddrs(all);
    return found;
}

EXPORT ucc_status_t ucc_context_create(ucc_lib_h lib, const ucc_context_params_t *params,
                                       const ucc_context_config_h config, ucc_context_h *made_context)
{
    ENTER(ucc_context_create);
    (void)lib;
    /* With an exchange among all its end would wait for all. */
    if (params->mask || !config)
        ANSWER(ucc_context_create, UCC_ERR_INVALID_PARAM);
    struct context *context = calloc(1, sizeof *context);
    context->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    context->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = interface_address()};
    socklen_t length = sizeof context->address;
    if (bind(context->listener, (struct sockaddr *)&context->address, length) || listen(context->listener, 1024) ||
        getsockname(context->listener, (struct sockaddr *)&context->address, &length)) {
        close(context->listener);
        free(context);
        ANSWER(ucc_context_create, UCC_ERR_NO_RESOURCE);
    }
    *made_context = context;
    ANSWER(ucc_context_create, UCC_OK);
}

EXPORT ucc_status_t ucc_context_destroy(ucc_context_h handle)
{
    ENTER(ucc_context_destroy);
    struct context *context = handle;
    assert(!context->team);
    close(context->listener);
    free(context);
    ANSWER(ucc_context_destroy, UCC_OK);
}

EXPORT ucc_status_t ucc_team_create_post(ucc_context_h *contexts, uint32_t count, const ucc_team_params_t *params,
                                         ucc_team_h *made_team)
{
    ENTER(ucc_team_create_post);
    if (count != 1 || params->mask != UCC_TEAM_PARAM_FIELD_OOB)
        ANSWER(ucc_team_create_post, UCC_ERR_INVALID_PARAM);
    struct team *team = calloc(1, sizeof *team);
    team->context = contexts[0];
    team->context->team = team;
    team->oob = params->oob;
    team->rank = (int)params->oob.oob_ep;
    team->ranks = (int)params->oob.n_oob_eps;
    team->addresses = calloc((size_t)team->ranks, sizeof *team->addresses);
    team->peers = calloc((size_t)team->ranks, sizeof *team->peers);
    team->polled = calloc((size_t)team->ranks, sizeof *team->polled);
    for (int rank = 0; rank < team->ranks; rank++) {
        struct peer *peer = &team->peers[rank];
        peer->fd = -1;
        peer->last_send = &peer->sends;
        peer->last_recv = &peer->recvs;
        peer->last_early = &peer->early;
    }
    *made_team = team;
    ANSWER(ucc_team_create_post, UCC_INPROGRESS);
}

static void take(struct team *team, int rank, int fd)
{
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    team->peers[rank].fd = fd;
}

/* Connects to all of lower rank, and says who this is. */
static ucc_status_t connect_down(struct team *team)
{
    for (int rank = 0; rank < team->rank; rank++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct timeval limit = {2, 0};
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, (struct sockaddr *)&team->addresses[rank], sizeof *team->addresses) ||
            send(fd, &team->rank, sizeof team->rank, MSG_NOSIGNAL) != sizeof team->rank) {
            close(fd);
            return UCC_ERR_NO_MESSAGE;
        }
        take(team, rank, fd);
    }
    return UCC_OK;
}

EXPORT ucc_status_t ucc_team_create_test(ucc_team_h handle)
{
    ENTER(ucc_team_create_test);
    struct team *team = handle;
    ucc_status_t status;
    switch (team->state) {
    case 0:
        status = team->oob.allgather(&team->context->address, team->addresses, sizeof *team->addresses,
                                     team->oob.coll_info, &team->gathering);
        if (status < 0)
            ANSWER(ucc_team_create_test, status);
        team->state++;
        return UCC_INPROGRESS;
    case 1:
        status = team->oob.req_test(team->gathering);
        if (status > 0)
            return status;
        team->oob.req_free(team->gathering);
        if (status == UCC_OK)
            status = connect_down(team);
        if (status < 0)
            ANSWER(ucc_team_create_test, status);
        team->state++;
        return UCC_INPROGRESS;
    case 2:
        while (team->accepted < team->ranks - 1 - team->rank) {
            int rank, fd = accept4(team->context->listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd < 0)
                return UCC_INPROGRESS;
            if (recv(fd, &rank, sizeof rank, MSG_WAITALL) != sizeof rank)
                ANSWER(ucc_team_create_test, UCC_ERR_NO_MESSAGE);
            take(team, rank, fd);
            team->accepted++;
        }
        team->state++;
        /* Fall through. */
    default:
        ANSWER(ucc_team_create_test, UCC_OK);
    }
}

EXPORT ucc_status_t ucc_team_destroy(ucc_team_h handle)
{
    ENTER(ucc_team_destroy);
    struct team *team = handle;
    for (int rank = 0; rank < team->ranks; rank++) {
        struct peer *peer = &team->peers[rank];
        if (peer->fd >= 0)
            close(peer->fd);
        if (peer->early_now) {
            free(peer->early_now->data);
            free(peer->early_now);
        }
        for (struct early *one = peer->early, *next; one; one = next) {
            next = one->next;
            free(one->data);
            free(one);
        }
    }
    team->context->team = NULL;
    free(team->addresses);
    free(team->peers);
    free(team->polled);
    free(team);
    ANSWER(ucc_team_destroy, UCC_OK);
}

/* Without an error for anybody: what was under way is as good as done, what is still expected never comes. */
static void lose(struct peer *peer)
{
    peer->dead = true;
    if (peer->fd >= 0)
        close(peer->fd);
    peer->fd = -1;
    if (peer->into)
        peer->into->base.status = UCC_OK;
    peer->into = NULL;
    for (struct request *one = peer->sends; one; one = one->next)
        one->base.status = UCC_OK;
    peer->sends = NULL;
    peer->last_send = &peer->sends;
}

/* Whether the connection is to break here. */
static bool breaks(struct request *send)
{
    static atomic_int broken;
    const char *least = getenv("FAKE_UCC_BREAK");
    return least && send->bytes >= strtoul(least, NULL, 10) && send->moved >= send->bytes / 2 &&
           !atomic_exchange(&broken, 1);
}

static void push(struct peer *peer)
{
    while (peer->sends && !peer->dead) {
        struct request *send_now = peer->sends;
        ssize_t sent;
        if (peer->header_sent < sizeof peer->out) {
            peer->out = (struct header){send_now->tag, send_now->bytes};
            sent = send(peer->fd, (char *)&peer->out + peer->header_sent, sizeof peer->out - peer->header_sent,
                        MSG_NOSIGNAL | MSG_MORE);
            if (sent > 0) {
                peer->header_sent += (size_t)sent;
                continue;
            }
        } else {
            size_t left = send_now->bytes - send_now->moved;
            size_t part = getenv("FAKE_UCC_BREAK") && left > 1 && !send_now->moved ? left / 2 : left;
            sent = send(peer->fd, send_now->buffer + send_now->moved, part, MSG_NOSIGNAL);
            if (sent > 0) {
                send_now->moved += (size_t)sent;
                if (send_now->moved < send_now->bytes) {
                    if (breaks(send_now))
                        lose(peer);
                    continue;
                }
                peer->header_sent = 0;
                peer->sends = send_now->next;
                if (!peer->sends)
                    peer->last_send = &peer->sends;
                send_now->base.status = UCC_OK;
                continue;
            }
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        if (errno != EINTR)
            lose(peer);
    }
}

/* The first receive that waits for a message with this tag, taken out of the list. */
static struct request *waiting(struct peer *peer, uint64_t tag)
{
    for (struct request **at = &peer->recvs; *at; at = &(*at)->next) {
        struct request *one = *at;
        if (one->tag != tag)
            continue;
        *at = one->next;
        if (!one->next)
            peer->last_recv = at;
        one->next = NULL;
        return one;
    }
    return NULL;
}

static void pull(struct peer *peer)
{
    while (!peer->dead) {
        ssize_t got;
        if (peer->header_got < sizeof peer->in) {
            got = recv(peer->fd, (char *)&peer->in + peer->header_got, sizeof peer->in - peer->header_got, 0);
            if (got > 0) {
                peer->header_got += (size_t)got;
                if (peer->header_got < sizeof peer->in)
                    continue;
                peer->got = 0;
                peer->into = waiting(peer, peer->in.tag);
                if (!peer->into) {
                    peer->early_now = calloc(1, sizeof *peer->early_now);
                    peer->early_now->header = peer->in;
                    peer->early_now->data = malloc(peer->in.bytes);
                }
                assert(!peer->into || peer->in.bytes <= peer->into->bytes);
                continue;
            }
        } else {
            char *to = peer->into ? peer->into->buffer : peer->early_now->data;
            got = recv(peer->fd, to + peer->got, peer->in.bytes - peer->got, 0);
            if (got > 0) {
                peer->got += (size_t)got;
                if (peer->got < peer->in.bytes)
                    continue;
                peer->header_got = 0;
                if (peer->into)
                    peer->into->base.status = UCC_OK;
                else {
                    *peer->last_early = peer->early_now;
                    peer->last_early = &peer->early_now->next;
                }
                peer->into = NULL;
                peer->early_now = NULL;
                continue;
            }
        }
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got == 0 || errno != EINTR)
            lose(peer);
    }
}

EXPORT ucc_status_t ucc_context_progress(ucc_context_h handle)
{
    static struct fk_site site = {.name = "ucc_context_progress"};
    int made = fk_enter(&site, NULL, 0);
    if (made)
        return made;
    struct team *team = ((struct context *)handle)->team;
    if (!team || team->state <= 2)
        return UCC_OK;
    for (int rank = 0; rank < team->ranks; rank++) {
        push(&team->peers[rank]);
        team->polled[rank] = (struct pollfd){.fd = team->peers[rank].fd, .events = POLLIN};
    }
    if (poll(team->polled, (nfds_t)team->ranks, 0) > 0)
        for (int rank = 0; rank < team->ranks; rank++)
            if (team->polled[rank].revents)
                pull(&team->peers[rank]);
    return UCC_OK;
}

EXPORT ucc_status_t ucc_collective_init(ucc_coll_args_t *args, ucc_coll_req_h *request, ucc_team_h handle)
{
    ENTER(ucc_collective_init);
    struct team *team = handle;
    uint64_t needed = UCC_COLL_ARGS_FIELD_TAG | UCC_COLL_ARGS_FIELD_ACTIVE_SET;
    int first = (int)args->active_set.start, second = (int)((int64_t)args->active_set.start + args->active_set.stride);
    if (args->mask != needed || args->coll_type != UCC_COLL_TYPE_BCAST || args->active_set.size != 2 ||
        args->src.info.datatype != UCC_DT_UINT8 || args->src.info.mem_type != UCC_MEMORY_TYPE_HOST)
        ANSWER(ucc_collective_init, UCC_ERR_NOT_SUPPORTED);
    if (first == second || (first != team->rank && second != team->rank) || (int)args->root != first)
        ANSWER(ucc_collective_init, UCC_ERR_INVALID_PARAM);
    struct request *one = calloc(1, sizeof *one);
    *one = (struct request){
        .base = {UCC_OPERATION_INITIALIZED},
        .team = team,
        .sends = first == team->rank,
        .peer = first == team->rank ? second : first,
        .tag = args->tag,
        .buffer = args->src.info.buffer,
        .bytes = args->src.info.count,
    };
    *request = &one->base;
    ANSWER(ucc_collective_init, UCC_OK);
}

EXPORT ucc_status_t ucc_collective_post(ucc_coll_req_h request)
{
    ENTER(ucc_collective_post);
    struct request *one = (struct request *)(void *)request;
    struct peer *peer = &one->team->peers[one->peer];
    request->status = UCC_INPROGRESS;
    if (!one->bytes || (one->sends && peer->dead)) {
        request->status = UCC_OK;
    } else if (one->sends) {
        *peer->last_send = one;
        peer->last_send = &one->next;
        push(peer);
    } else {
        struct early **at = &peer->early;
        while (*at && (*at)->header.tag != one->tag)
            at = &(*at)->next;
        struct early *found = *at;
        if (found) {
            assert(found->header.bytes <= one->bytes);
            memcpy(one->buffer, found->data, found->header.bytes);
            *at = found->next;
            if (!*at)
                peer->last_early = at;
            free(found->data);
            free(found);
            request->status = UCC_OK;
        } else if (peer->early_now && peer->early_now->header.tag == one->tag) {
            /* It is coming, and all that has come of it is this receive's. */
            assert(peer->early_now->header.bytes <= one->bytes);
            memcpy(one->buffer, peer->early_now->data, peer->got);
            free(peer->early_now->data);
            free(peer->early_now);
            peer->early_now = NULL;
            peer->into = one;
        } else {
            *peer->last_recv = one;
            peer->last_recv = &one->next;
        }
    }
    ANSWER(ucc_collective_post, UCC_OK);
}

EXPORT ucc_status_t ucc_collective_finalize(ucc_coll_req_h request)
{
    ENTER(ucc_collective_finalize);
    if (request->status == UCC_INPROGRESS)
        ANSWER(ucc_collective_finalize, UCC_ERR_INVALID_PARAM);
    free(request);
    ANSWER(ucc_collective_finalize, UCC_OK);
}
