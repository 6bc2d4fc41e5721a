/* NCCL, or RCCL with -DRCCL, as far as the project calls it: every rank sends its part to the process that drew the id, which
 * checks that all ranks call the same, combines, and answers. Work runs in the order of the stand-in's streams. */
#include "stand_in.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef NCCL_VERSION
#define NCCL_VERSION 22705
#endif
#ifdef RCCL
#define DEVICE hip_device
#define IS_STARTED hip_is_started
#else
#define DEVICE cuda_device
#define IS_STARTED cuda_is_started
#endif

enum { RANKS = 64, ITEMS = 256, COMM = 0xc033, DEAD = 0x0dead1, COMMS = 256 };
enum { SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, OPS };
enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE, GOODBYE, SPLIT };
static char const *const words[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter",
    "ncclSend", "ncclRecv", "ncclCommFinalize", "ncclCommSplit"};
static size_t const widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

typedef struct { char bytes[128]; } id_t_;
typedef struct { size_t size; unsigned magic, version; int blocking; } config_t;

/* What a rank tells of itself, and what it asks. */
typedef struct { int rank, count, version; char device[128]; } hello_t;
typedef struct {
    int kind, dtype, op, root; /* The peer's rank in send and receive; in a split `dtype` is the color and `op` the key. */
    size_t count, in_bytes, out_bytes;
} header_t;

/* Where a rank goes that splits. */
typedef struct { char socket[64]; int rank, count; } seat_t;
typedef struct { header_t header; uint64_t input, output; } item_t;

typedef struct known {
    struct comm *comm;
    uint64_t address;
    size_t bytes;
    struct known *next;
} known_t;

typedef struct comm {
    known_t *known;
    int magic, rank, count, fd, is_blocking, is_final, is_aborted, state, polls, active;
    int color, key;
    char socket[64];
    device_t *device;
    pthread_mutex_t wire;
    struct comm *parent; /* Of one that is made by a split. */
} comm_t;

typedef struct { comm_t *comm; stream_t *stream; unsigned count; item_t items[ITEMS]; } batch_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static comm_t *comms[COMMS];
static unsigned comm_count;
static char last[256];
static _Thread_local int depth;
static _Thread_local batch_t *open_batches[RANKS];
static _Thread_local unsigned open_count;
/* What starts and what is aborted at the end of the group that is open on this thread. */
static _Thread_local comm_t *starting[RANKS], *ending[RANKS];
static _Thread_local unsigned start_count, end_count;
/* What a call of the open group has failed with: then nothing of it is done. */
static _Thread_local int group_code;

static int all(int fd, void *bytes, size_t length, int is_write) {
    for (char *at = bytes; length;) {
        ssize_t done = is_write ? send(fd, at, length, MSG_NOSIGNAL) : recv(fd, at, length, 0);
        if (done == -1 && errno == EINTR) continue;
        if (done <= 0) return 0;
        at += done, length -= (size_t)done;
    }
    return 1;
}

static int name_of(char const *name, struct sockaddr_un *address) {
    char const *folder = getenv("STAND_IN_SOCKETS");
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (folder) {
        int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", folder, name);
        if (length >= (int)sizeof address->sun_path) violation("STAND_IN_SOCKETS: a path that is too long");
        return (int)sizeof *address;
    }
    snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%s", name);
    return (int)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

/* --- Arithmetic ----------------------------------------------------------------------------------------------- */

static float of_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

#define STEP(a, b) (op == PRODUCT ? (a) * (b) : op == MAXIMUM ? ((a) > (b) ? (a) : (b)) : op == MINIMUM ? ((a) < (b) ? (a) : (b)) : (a) + (b))
#define KIND(number, type, wide, get, put)                                                              \
    case number:                                                                                        \
        for (size_t e = 0; e < count; ++e) {                                                            \
            wide sum = (wide)get(((type const *)parts[0])[e]);                                          \
            for (int r = 1; r < ranks; ++r) {                                                           \
                wide next = (wide)get(((type const *)parts[r])[e]);                                     \
                sum = (wide)STEP(sum, next);                                                            \
            }                                                                                           \
            if (op == AVERAGE) sum = (wide)(sum / (wide)ranks);                                         \
            ((type *)out)[e] = (type)put(sum);                                                          \
        }                                                                                               \
        break

/* Combines in the order of ranks; halves in single precision. */
static void combine(void *out, unsigned char **parts, int ranks, size_t count, int dtype, int op) {
    switch (dtype) {
        KIND(0, int8_t, int8_t, , );
        KIND(1, uint8_t, uint8_t, , );
        KIND(2, int32_t, int32_t, , );
        KIND(3, uint32_t, uint32_t, , );
        KIND(4, int64_t, int64_t, , );
        KIND(5, uint64_t, uint64_t, , );
        KIND(6, _Float16, float, , );
        KIND(7, float, float, , );
        KIND(8, double, double, , );
        KIND(9, uint16_t, float, of_bf16, to_bf16);
    }
}

/* --- The process that drew the id ------------------------------------------------------------------------------ */

typedef struct { header_t header; unsigned char *input, *output; int is_done; } wish_t;
typedef struct {
    int fd, is_gone;
    hello_t hello;
    unsigned count, next; /* Of wishes; `next` is the first collective that is not done. */
    wish_t wishes[ITEMS];
} client_t;

static void answer(client_t *client) {
    for (unsigned i = 0; i < client->count; ++i)
        if (!client->wishes[i].is_done) return;
    for (unsigned i = 0; i < client->count; ++i) {
        wish_t *wish = &client->wishes[i];
        if (!client->is_gone) all(client->fd, wish->output, wish->header.out_bytes, 1);
        free(wish->input), free(wish->output);
    }
    /* An operation without a result is told by a byte. */
    char done = 1;
    if (client->count && !client->is_gone) all(client->fd, &done, 1, 1);
    client->count = 0;
}

static wish_t *first(client_t *client, int kind, int peer) {
    for (unsigned i = 0; i < client->count; ++i) {
        wish_t *wish = &client->wishes[i];
        int is_pair = wish->header.kind == SEND || wish->header.kind == RECEIVE;
        if (wish->is_done || (kind < 0 ? is_pair : wish->header.kind != kind || wish->header.root != peer)) continue;
        return wish;
    }
    return NULL;
}

static int draw(char *name);

/* Draws an id for each color, and tells each rank its own and its rank there. */
static void split(wish_t **asked, int ranks) {
    for (int r = 0; r < ranks; ++r) {
        seat_t *own = (seat_t *)(void *)asked[r]->output;
        header_t h = asked[r]->header;
        memset(own, 0, sizeof *own);
        for (int o = 0; o < ranks; ++o) {
            header_t other = asked[o]->header;
            if (other.dtype != h.dtype) continue;
            own->count += 1;
            own->rank += other.op < h.op || (other.op == h.op && o < r);
            if (o < r) memcpy(own->socket, ((seat_t *)(void *)asked[o]->output)->socket, sizeof own->socket);
        }
        if (!*own->socket && draw(own->socket)) violation("ncclCommSplit: the host has no socket for it");
    }
}

/* Does what all have asked for; 1 if something was done. */
static int advance(client_t *clients, int ranks) {
    wish_t *asked[RANKS] = {NULL};
    unsigned char *parts[RANKS];
    int ready = 1, done = 0;
    for (int r = 0; r < ranks; ++r) ready &= (asked[r] = first(&clients[r], -1, 0)) != NULL;
    if (ready) {
        header_t h = asked[0]->header;
        for (int r = 0; r < ranks; ++r) {
            header_t o = asked[r]->header;
            if (o.kind == SPLIT && h.kind == SPLIT) continue;
            if (o.kind != h.kind || o.dtype != h.dtype || o.op != h.op || o.root != h.root || o.count != h.count)
                violation("rank 0 calls %s (type %d, op %d, root %d, %zu elements), rank %d %s (type %d, op %d, root %d, "
                          "%zu elements)", words[h.kind], h.dtype, h.op, h.root, h.count, r, words[o.kind], o.dtype, o.op,
                    o.root, o.count);
            parts[r] = asked[r]->input;
        }
        if (h.kind == SPLIT) split(asked, ranks);
        size_t width = h.kind == SPLIT ? 0 : widths[h.dtype], bytes = h.count * width;
        for (int r = 0; r < ranks; ++r) {
            unsigned char *out = asked[r]->output, *shifted[RANKS];
            switch (h.kind) {
            case ALL_REDUCE: combine(out, parts, ranks, h.count, h.dtype, h.op); break;
            case REDUCE: if (r == h.root) combine(out, parts, ranks, h.count, h.dtype, h.op); break;
            case BROADCAST: memcpy(out, parts[h.root], bytes); break;
            case ALL_GATHER: for (int p = 0; p < ranks; ++p) memcpy(out + (size_t)p * bytes, parts[p], bytes); break;
            case REDUCE_SCATTER:
                for (int p = 0; p < ranks; ++p) shifted[p] = parts[p] + (size_t)r * bytes;
                combine(out, shifted, ranks, h.count, h.dtype, h.op);
                break;
            }
        }
        for (int r = 0; r < ranks; ++r) asked[r]->is_done = 1;
        done = 1;
    }
    for (int from = 0; from < ranks; ++from)
        for (int to = 0; to < ranks; ++to) {
            wish_t *sent = first(&clients[from], SEND, to), *taken = first(&clients[to], RECEIVE, from);
            if (!sent || !taken) continue;
            if (sent->header.dtype != taken->header.dtype || sent->header.count != taken->header.count)
                violation("rank %d sends %zu elements of type %d, rank %d receives %zu of type %d", from,
                    sent->header.count, sent->header.dtype, to, taken->header.count, taken->header.dtype);
            memcpy(taken->output, sent->input, sent->header.in_bytes);
            sent->is_done = taken->is_done = 1, done = 1;
        }
    for (int r = 0; r < ranks; ++r) answer(&clients[r]);
    return done;
}

/* Takes a batch of one rank; 0 if it has gone. What it has asked for then stays asked: the others wait, as on a GPU. */
static int take(client_t *client) {
    unsigned count;
    if (!all(client->fd, &count, sizeof count, 0)) return 0;
    if (client->count || count > ITEMS) violation("a rank asks before it was answered");
    for (unsigned i = 0; i < count; ++i) {
        wish_t wish = {.is_done = 0};
        if (!all(client->fd, &wish.header, sizeof wish.header, 0)) return 0;
        if (wish.header.kind == GOODBYE) return 0;
        wish.input = malloc(wish.header.in_bytes + 1), wish.output = malloc(wish.header.out_bytes + 1);
        if (!wish.input || !wish.output) violation("the host has no memory for it");
        if (!all(client->fd, wish.input, wish.header.in_bytes, 0)) return 0;
        client->wishes[client->count++] = wish;
    }
    return 1;
}

/* What is wrong with ranks that have come, NULL if nothing is. */
static char const *wrong(client_t *clients, int count) {
    for (int r = 0; r < count; ++r) {
        hello_t *own = &clients[r].hello;
        if (own->count != count) return "ranks say different counts";
        if (own->version != clients[0].hello.version) return "ranks have different versions";
        for (int o = 0; o < r; ++o)
            if (!strcmp(own->device, clients[o].hello.device) && !getenv("NCCL_MULTI_RANK_GPU_ENABLE"))
                return "Duplicate GPU detected";
    }
    return NULL;
}

static void *host(void *given) {
    int listener = (int)(intptr_t)given, came = 0, ranks = 1;
    client_t *clients = calloc(RANKS, sizeof *clients);
    if (!clients) violation("the host has no memory for ranks");
    while (came < ranks) {
        int fd = accept(listener, NULL, NULL);
        hello_t hello;
        if (fd < 0 || !all(fd, &hello, sizeof hello, 0)) continue;
        ranks = hello.count;
        if (clients[hello.rank].hello.count) violation("rank %d came twice", hello.rank);
        clients[hello.rank].fd = fd, clients[hello.rank].hello = hello, ++came;
    }
    close(listener);
    char said[64] = "";
    char const *refused = wrong(clients, ranks);
    if (refused) snprintf(said, sizeof said, "%s", refused);
    for (int r = 0; r < ranks; ++r) all(clients[r].fd, said, sizeof said, 1);
    int here = refused ? 0 : ranks;
    while (here) {
        fd_set set;
        int top = -1;
        FD_ZERO(&set);
        for (int r = 0; r < ranks; ++r)
            if (!clients[r].is_gone) FD_SET(clients[r].fd, &set), top = clients[r].fd > top ? clients[r].fd : top;
        if (select(top + 1, &set, NULL, NULL, NULL) < 0) continue;
        for (int r = 0; r < ranks; ++r)
            if (!clients[r].is_gone && FD_ISSET(clients[r].fd, &set) && !take(&clients[r])) clients[r].is_gone = 1, --here;
        while (advance(clients, ranks)) {}
    }
    for (int r = 0; r < ranks; ++r) close(clients[r].fd);
    free(clients);
    return NULL;
}

static int failed(int code) {
    if (depth) group_code = code;
    return code;
}

/* Listens under a new name for those that hold it. */
static int draw(char *name) {
    uint64_t secret[2];
    struct sockaddr_un address;
    pthread_t thread;
    if (getrandom(secret, sizeof secret, 0) != sizeof secret) return SYSTEM_ERROR;
    snprintf(name, 64, "stand-in-%016llx%016llx", (unsigned long long)secret[0], (unsigned long long)secret[1]);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), length = name_of(name, &address);
    if (bind(listener, (struct sockaddr *)&address, (socklen_t)length) || listen(listener, RANKS)) return SYSTEM_ERROR;
    if (pthread_create(&thread, NULL, host, (void *)(intptr_t)listener)) return SYSTEM_ERROR;
    pthread_detach(thread);
    return SUCCESS;
}

int ncclGetUniqueId(id_t_ *id) {
    int code = enter("ncclGetUniqueId");
    if (code) return code;
    memset(id, 0, sizeof *id);
    return draw(id->bytes);
}

/* --- Communicators --------------------------------------------------------------------------------------------- */

int ncclGetVersion(int *version) {
    *version = NCCL_VERSION;
    return SUCCESS;
}

char const *ncclGetErrorString(int code) {
    switch (code) {
    case SUCCESS: return "no error";
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case 6: return "remote process exited or there was a network error";
    case IN_PROGRESS: return "NCCL operation in progress";
    default: return "internal error";
    }
}

char const *ncclGetLastError(comm_t *comm) {
    (void)comm;
    return last;
}

static comm_t *comm_of(comm_t *comm, char const *what) {
    if (comm && comm->magic == DEAD) violation("%s: a communicator that was destroyed or aborted", what);
    if (!comm || comm->magic != COMM) violation("%s: no communicator", what);
    return comm;
}

/* Asks the parent's ranks for a place among those of its color. */
static int ask(comm_t *comm) {
    comm_t *parent = comm->parent;
    unsigned count = 1;
    header_t header = {SPLIT, comm->color, comm->key, 0, 0, 0, sizeof(seat_t)};
    seat_t seat;
    char done;
    pthread_mutex_lock(&parent->wire);
    int is_well = all(parent->fd, &count, sizeof count, 1) && all(parent->fd, &header, sizeof header, 1) &&
        all(parent->fd, &seat, sizeof seat, 0) && all(parent->fd, &done, 1, 0);
    pthread_mutex_unlock(&parent->wire);
    if (is_well) {
        memcpy(comm->socket, seat.socket, sizeof comm->socket);
        comm->rank = seat.rank, comm->count = seat.count;
    }
    return is_well ? SUCCESS : SYSTEM_ERROR;
}

static void *join(void *given) {
    comm_t *comm = given;
    struct sockaddr_un address;
    int code = enter(comm->parent ? "split" : "init");
    if (!code && comm->parent) code = ask(comm);
    int length = name_of(comm->socket, &address);
    hello_t hello = {comm->rank, comm->count, NCCL_VERSION, ""};
    char said[64] = "";
    snprintf(hello.device, sizeof hello.device, "%s%s", comm->device->uuid, comm->device->pci);
    if (!code && connect(comm->fd, (struct sockaddr *)&address, (socklen_t)length)) code = SYSTEM_ERROR;
    pthread_mutex_lock(&lock);
    if (comm->is_aborted) code = SYSTEM_ERROR;
    pthread_mutex_unlock(&lock);
    if (!code && !all(comm->fd, &hello, sizeof hello, 1)) code = SYSTEM_ERROR;
    /* Those that wait for a rank that does not come wait until they are aborted. */
    if (!code && !all(comm->fd, said, sizeof said, 0)) code = SYSTEM_ERROR;
    if (!code && *said) code = INVALID_USAGE;
    pthread_mutex_lock(&lock);
    if (*said) snprintf(last, sizeof last, "%s", said);
    comm->state = code, comm->active -= 1;
    if (comm->parent) comm->parent->active -= 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int begin(comm_t *comm) {
    pthread_t thread;
    if (comm->is_blocking) return join(comm), comm->state;
    if (pthread_create(&thread, NULL, join, comm)) violation("the host has no thread for init");
    pthread_detach(thread);
    return IN_PROGRESS;
}

/* A communicator that starts now, or at the end of the group. */
static int make(comm_t **result, int count, char const *name, int rank, device_t *device, config_t *config, comm_t *parent,
    int color, int key) {
    if (!config || config->magic != 0xcafebeef || config->size < sizeof *config) violation("init: a config that is none");
    if (config->version < 21403 || config->version > NCCL_VERSION)
        violation("init: a config of version %u for a library of %d", config->version, NCCL_VERSION);
    comm_t *comm = calloc(1, sizeof *comm);
    if (!comm) violation("the host has no memory for a communicator");
    comm->magic = COMM, comm->rank = rank, comm->count = count, comm->device = device, comm->parent = parent;
    comm->color = color, comm->key = key;
    comm->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    comm->is_blocking = config->blocking != 0, comm->state = IN_PROGRESS, comm->active = 1;
    snprintf(comm->socket, sizeof comm->socket, "%.63s", name);
    pthread_mutex_init(&comm->wire, NULL);
    pthread_mutex_lock(&lock);
    if (comm_count == COMMS) violation("too many communicators");
    /* Ranks of one process that are not started together wait for each other where a start blocks. */
    for (unsigned c = 0; c < comm_count && !depth; ++c)
        if (comms[c]->magic == COMM && !parent && !strcmp(comms[c]->socket, comm->socket))
            violation("init: several ranks of a process outside of a group");
    comms[comm_count++] = comm;
    pthread_mutex_unlock(&lock);
    *result = comm;
    if (!depth) return begin(comm);
    if (start_count == RANKS) violation("init: too many in a group");
    starting[start_count++] = comm;
    return IN_PROGRESS;
}

int ncclCommInitRankConfig(comm_t **result, int count, id_t_ id, int rank, config_t *config) {
    int code = enter("ncclCommInitRankConfig");
    if (code) return failed(code);
    if (rank < 0 || rank >= count || count > RANKS || strncmp(id.bytes, "stand-in-", 9)) return INVALID_ARGUMENT;
    return make(result, count, id.bytes, rank, DEVICE(), config, NULL, 0, 0);
}

int ncclCommGetAsyncError(comm_t *comm, int *state) {
    comm_of(comm, "ncclCommGetAsyncError");
    pthread_mutex_lock(&lock);
    int works = !comm->state && comm->active;
    pthread_mutex_unlock(&lock);
    int code = enter("ncclCommGetAsyncError"), async = works ? enter("async") : SUCCESS;
    pthread_mutex_lock(&lock);
    *state = async ? async : comm->state ? comm->state : comm->polls > 0 ? IN_PROGRESS : SUCCESS;
    if (!comm->state && comm->polls > 0) --comm->polls;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Calls of one that does not block are asked about before the next one. */
static int later(comm_t *comm) {
    if (comm->is_blocking) return SUCCESS;
    comm->polls = 2;
    return IN_PROGRESS;
}

static void usable(comm_t *comm, char const *what) {
    comm_of(comm, what);
    if (comm->is_final) violation("%s: a communicator that was finalized", what);
    if (comm->state) violation("%s: a communicator that is not ready, or has failed", what);
    if (comm->polls) violation("%s: the call before was not asked about until it had ended", what);
}

/* What it has put on its stream ends. */
static void cut(comm_t *comm) {
    pthread_mutex_lock(&lock);
    comm->is_aborted = 1;
    shutdown(comm->fd, SHUT_RDWR);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void end(comm_t *comm, int is_abort) {
    if (is_abort) cut(comm);
    pthread_mutex_lock(&lock);
    while (comm->active) pthread_cond_wait(&changed, &lock);
    /* One that ends in order was told to forget what it knew. */
    if (comm->known && !is_abort) violation("ncclCommDestroy: a communicator that knows memory");
    for (; comm->known; comm->known = comm->known->next) memory_register(comm->known->address, comm->known->bytes, 0);
    comm->magic = DEAD;
    close(comm->fd);
    pthread_mutex_unlock(&lock);
}

int ncclCommFinalize(comm_t *comm) {
    int code = enter("ncclCommFinalize");
    if (code) return code;
    usable(comm, "ncclCommFinalize");
    unsigned count = 1;
    header_t header = {.kind = GOODBYE};
    pthread_mutex_lock(&comm->wire);
    all(comm->fd, &count, sizeof count, 1), all(comm->fd, &header, sizeof header, 1);
    pthread_mutex_unlock(&comm->wire);
    comm->is_final = 1;
    return later(comm);
}

int ncclCommDestroy(comm_t *comm) {
    int code = enter("ncclCommDestroy");
    if (code) return code;
    comm_of(comm, "ncclCommDestroy");
    if (comm->state || comm->polls) violation("ncclCommDestroy: it would block, as the call before has not ended");
    end(comm, 0);
    return SUCCESS;
}

/* Another live rank of the same communicator in this process. */
static comm_t *sibling(comm_t *comm) {
    comm_t *found = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned c = 0; c < comm_count && !found; ++c)
        if (comms[c] != comm && comms[c]->magic == COMM && !strcmp(comms[c]->socket, comm->socket))
            found = comms[c];
    pthread_mutex_unlock(&lock);
    return found;
}

int ncclCommAbort(comm_t *comm) {
    int code = enter("ncclCommAbort");
    comm_of(comm, "ncclCommAbort");
    if (depth) {
        if (end_count == RANKS) violation("ncclCommAbort: too many in a group");
        ending[end_count++] = comm;
        return code;
    }
    /* Two that are aborted one after the other can wait for each other. */
    if (sibling(comm)) violation("ncclCommAbort: other ranks of this process are not aborted in one group");
    end(comm, 1);
    return code;
}

int ncclCommSplit(comm_t *comm, int color, int key, comm_t **result, config_t *config) {
    int code = enter("ncclCommSplit");
    usable(comm, "ncclCommSplit");
    *result = NULL;
    if (code) return failed(code);
    if (color < 0) violation("ncclCommSplit: a rank without a color, which is not known here");
    if (!depth && sibling(comm)) violation("ncclCommSplit: several ranks of a process outside of a group");
    pthread_mutex_lock(&lock);
    if (comm->active) violation("ncclCommSplit: the parent has work that has not ended");
    comm->active += 1;
    pthread_mutex_unlock(&lock);
    int made = make(result, 0, "", 0, comm->device, config, comm, color, key);
    if (!(*result)->is_blocking) later(comm);
    return made;
}

/* --- Work ------------------------------------------------------------------------------------------------------- */

/* On a stream's thread: sends all, and waits for all. One that is left alone waits until it is aborted. */
static void work(void *given) {
    batch_t *batch = given;
    comm_t *comm = batch->comm;
    char done;
    pthread_mutex_lock(&comm->wire);
    int is_well = all(comm->fd, &batch->count, sizeof batch->count, 1);
    for (unsigned i = 0; i < batch->count && is_well; ++i) {
        item_t *item = &batch->items[i];
        size_t in = item->header.in_bytes;
        is_well = all(comm->fd, &item->header, sizeof item->header, 1);
        if (is_well && in) is_well = all(comm->fd, host_address(item->input, in, words[item->header.kind]), in, 1);
    }
    for (unsigned i = 0; i < batch->count && is_well; ++i) {
        item_t *item = &batch->items[i];
        size_t out = item->header.out_bytes;
        unsigned char *bytes = malloc(out + 1);
        if (!bytes) violation("the host has no memory for a result");
        is_well = all(comm->fd, bytes, out, 0);
        if (is_well && out) memcpy(host_address(item->output, out, words[item->header.kind]), bytes, out);
        free(bytes);
    }
    is_well = is_well && all(comm->fd, &done, 1, 0);
    pthread_mutex_unlock(&comm->wire);
    pthread_mutex_lock(&lock);
    while (!is_well && !comm->is_aborted) pthread_cond_wait(&changed, &lock);
    comm->active -= 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(batch);
}

static int submit(batch_t *batch) {
    comm_t *comm = batch->comm;
    pthread_mutex_lock(&lock);
    comm->active += 1;
    pthread_mutex_unlock(&lock);
    if (stream_call(comm->device, batch->stream, work, batch)) {
        pthread_mutex_lock(&lock);
        comm->active -= 1;
        pthread_mutex_unlock(&lock);
        free(batch);
        return 1; /* ncclUnhandledCudaError */
    }
    return later(comm);
}

static int put(comm_t *comm, stream_t *stream, item_t item) {
    int kind = item.header.kind, code = enter(words[kind]);
    batch_t *batch = NULL;
    if (code) return failed(code);
    usable(comm, words[kind]);
    if (item.header.dtype < 0 || item.header.dtype > 9 || item.header.op >= OPS || item.header.root >= comm->count)
        return INVALID_ARGUMENT;
    if (item.header.in_bytes) host_address(item.input, item.header.in_bytes, words[kind]);
    if (item.header.out_bytes) host_address(item.output, item.header.out_bytes, words[kind]);
    for (unsigned b = 0; b < open_count; ++b)
        if (open_batches[b]->comm == comm) batch = open_batches[b];
    if (!batch) {
        batch = calloc(1, sizeof *batch);
        if (!batch || open_count == RANKS) violation("the host has no room for a group");
        batch->comm = comm, batch->stream = stream, open_batches[open_count++] = batch;
    }
    if (batch->stream != stream) violation("%s: two streams of one communicator in a group", words[kind]);
    if (batch->count == ITEMS) violation("%s: too many in a group", words[kind]);
    batch->items[batch->count++] = item;
    if (depth) return SUCCESS;
    if (sibling(comm)) violation("%s: several ranks of a process outside of a group", words[kind]);
    open_count = 0;
    return submit(batch);
}

int ncclGroupStart(void) {
    int code = enter("ncclGroupStart");
    if (!code) ++depth;
    return code;
}

int ncclGroupEnd(void) {
    int code = enter("ncclGroupEnd"), result = SUCCESS;
    if (!depth) violation("ncclGroupEnd: no group was begun on this thread");
    if (--depth) return code;
    if (!code) code = group_code;
    group_code = 0;
    for (unsigned c = 0; c < start_count; ++c) {
        comm_t *comm = starting[c];
        int begun = IN_PROGRESS;
        if (!code) begun = begin(comm);
        else comm->state = code, comm->active -= 1;
        if (code && comm->parent) comm->parent->active -= 1;
        if (begun && (!result || result == IN_PROGRESS)) result = begun;
    }
    /* All are cut before one is waited for. */
    for (unsigned c = 0; c < end_count; ++c) cut(ending[c]);
    for (unsigned c = 0; c < end_count; ++c) {
        comm_t *other = sibling(ending[c]);
        for (unsigned e = 0; e < end_count; ++e)
            if (ending[e] == other) other = NULL;
        if (other) violation("ncclCommAbort: rank %d of this process is not aborted in the same group", other->rank);
        end(ending[c], 1);
    }
    start_count = end_count = 0;
    for (unsigned b = 0; b < open_count && !code; ++b) {
        /* All ranks of a process are in one group, with as many operations, or wait for each other. */
        for (unsigned c = 0; c < comm_count; ++c) {
            comm_t *other = comms[c];
            if (other->magic != COMM || strcmp(other->socket, open_batches[b]->comm->socket)) continue;
            int is_there = 0;
            for (unsigned o = 0; o < open_count; ++o) is_there |= open_batches[o]->comm == other;
            if (!is_there) violation("ncclGroupEnd: rank %d of this process is not in the group", other->rank);
        }
    }
    for (unsigned b = 0; b < open_count; ++b) {
        int next = code ? code : submit(open_batches[b]);
        if (code) free(open_batches[b]);
        if (next && (!result || result == IN_PROGRESS)) result = next;
    }
    open_count = 0;
    return code ? code : result;
}

static size_t width(int dtype) { return dtype >= 0 && dtype <= 9 ? widths[dtype] : 0; }

int ncclAllReduce(uint64_t in, uint64_t out, size_t count, int dtype, int op, comm_t *comm, stream_t *stream) {
    size_t bytes = count * width(dtype);
    return put(comm, stream, (item_t){{ALL_REDUCE, dtype, op, 0, count, bytes, bytes}, in, out});
}

int ncclReduce(uint64_t in, uint64_t out, size_t count, int dtype, int op, int root, comm_t *comm, stream_t *stream) {
    size_t bytes = count * width(dtype);
    comm_of(comm, "ncclReduce");
    return put(comm, stream, (item_t){{REDUCE, dtype, op, root, count, bytes, comm->rank == root ? bytes : 0}, in, out});
}

int ncclBroadcast(uint64_t in, uint64_t out, size_t count, int dtype, int root, comm_t *comm, stream_t *stream) {
    size_t bytes = count * width(dtype);
    comm_of(comm, "ncclBroadcast");
    return put(comm, stream, (item_t){{BROADCAST, dtype, 0, root, count, comm->rank == root ? bytes : 0, bytes}, in, out});
}

int ncclAllGather(uint64_t in, uint64_t out, size_t count, int dtype, comm_t *comm, stream_t *stream) {
    size_t bytes = count * width(dtype);
    comm_of(comm, "ncclAllGather");
    return put(comm, stream, (item_t){{ALL_GATHER, dtype, 0, 0, count, bytes, bytes * (size_t)comm->count}, in, out});
}

int ncclReduceScatter(uint64_t in, uint64_t out, size_t count, int dtype, int op, comm_t *comm, stream_t *stream) {
    size_t bytes = count * width(dtype);
    comm_of(comm, "ncclReduceScatter");
    return put(comm, stream, (item_t){{REDUCE_SCATTER, dtype, op, 0, count, bytes * (size_t)comm->count, bytes}, in, out});
}

int ncclSend(uint64_t in, size_t count, int dtype, int peer, comm_t *comm, stream_t *stream) {
    return put(comm, stream, (item_t){{SEND, dtype, 0, peer, count, count * width(dtype), 0}, in, 0});
}

int ncclRecv(uint64_t out, size_t count, int dtype, int peer, comm_t *comm, stream_t *stream) {
    return put(comm, stream, (item_t){{RECEIVE, dtype, 0, peer, count, 0, count * width(dtype)}, 0, out});
}

int ncclMemAlloc(uint64_t *address, size_t bytes) {
    int code = enter("ncclMemAlloc");
    /* A copy of its own, as a test puts into a wheel, sees no memory of the driver. */
    if (!IS_STARTED()) return 1;
    return code ? code : memory_take(DEVICE(), 1, bytes, address) ? 1 : SUCCESS;
}

int ncclMemFree(uint64_t address) {
    int code = enter("ncclMemFree");
    return code ? code : memory_give(DEVICE(), 1, address);
}

int ncclCommRegister(comm_t *comm, uint64_t address, size_t bytes, known_t **handle) {
    int code = enter("ncclCommRegister");
    usable(comm, "ncclCommRegister");
    if (code) return code;
    known_t *known = malloc(sizeof *known);
    if (!known) violation("the host has no memory for a registration");
    memory_register(address, bytes, 1);
    *known = (known_t){comm, address, bytes, comm->known};
    comm->known = *handle = known;
    return SUCCESS;
}

int ncclCommDeregister(comm_t *comm, known_t *handle) {
    int code = enter("ncclCommDeregister");
    comm_of(comm, "ncclCommDeregister");
    known_t **at = &comm->known;
    while (*at && *at != handle) at = &(*at)->next;
    if (!*at) violation("ncclCommDeregister: what this communicator does not know");
    memory_register(handle->address, handle->bytes, 0);
    *at = handle->next;
    return code;
}

#ifdef RCCL
/* Only RCCL has it, and is known by it. */
int ncclAllToAllv(void) { return INTERNAL_ERROR; }
#endif

/* At the end of the process: what was opened and not closed. */
__attribute__((destructor)) static void leave(void) {
    char line[64];
    for (unsigned c = 0; c < comm_count; ++c) {
        if (comms[c]->magic == DEAD) continue;
        snprintf(line, sizeof line, "left communicator of rank %d of %d", comms[c]->rank, comms[c]->count);
        write_down(line);
    }
}
