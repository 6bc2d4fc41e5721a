/* A folder as a client of NFS sees it, for the process that this library is loaded into by LD_PRELOAD: README.md.
 *
 * System calls are caught by a seccomp filter and not by their names in libc, since uform makes its own without libc. What
 * the library itself asks of the kernel carries a mark in the sixth argument, which none of the caught calls uses.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define MARK 0x6e66736cul
#define PATH_BYTES 4096
#define LISTING_BYTES 65536
#define FILES 1024
/* Files of the folder get numbers from here on, so that the filter can tell reads of them from all others. */
#define FIRST_FILE 900

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#define ARGUMENT(context, at)                                                                                            \
    ((context)->uc_mcontext                                                                                              \
         .gregs[(const int[]){REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8}[at]])
#define RESULT(context) ((context)->uc_mcontext.gregs[REG_RAX])
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#define ARGUMENT(context, at) ((context)->uc_mcontext.regs[at])
#define RESULT(context) ((context)->uc_mcontext.regs[0])
#else
#error "the registers of this machine are not known here"
#endif

/* What this process believes of a name: that it is not there, or that it is this file. */
struct belief {
    uint64_t key;
    uint64_t until;
    uint64_t file;
};

/* What it believes of a file's or folder's attributes. */
struct attributes {
    uint64_t file;
    uint64_t until;
    uint64_t links;
    int64_t size;
    int64_t seconds;
    int64_t nanoseconds;
};

/* What a folder held when it was looked at. */
struct listing {
    uint64_t folder;
    uint64_t until;
    size_t length;
    char bytes[LISTING_BYTES];
};

/* How far a listing has been given out. */
struct reading {
    int begun;
    int through;
    size_t length;
    size_t position;
    char bytes[LISTING_BYTES];
};

static char folder[PATH_BYTES];
static size_t folder_length;
static uint64_t lifetime;
static unsigned stale_per_mille;
static unsigned lost_per_mille;
static unsigned slow_milliseconds;
static uint64_t state;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static struct belief beliefs[8192];
static struct attributes attributes[4096];
static struct listing listings[256];
static struct reading readings[FILES];

/* A call of the kernel that the filter lets through: its result, or the negative number of its error. */
static long ask(long number, long a, long b, long c, long d, long e)
{
    long result = syscall(number, a, b, c, d, e, MARK);
    return result == -1 ? -errno : result;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static int draw(unsigned per_mille)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % 1000 < per_mille;
}

static uint64_t hash(const char *text)
{
    uint64_t value = 0xcbf29ce484222325;
    while (*text != '\0')
        value = (value ^ (unsigned char)*text++) * 0x100000001b3;
    return value | 1;
}

static uint64_t file_of(const struct stat *status)
{
    return ((uint64_t)status->st_dev << 40) ^ (uint64_t)status->st_ino;
}

/* The place of a key in a table: its own, the first free one near it, or the first near it. */
#define PLACE(table, field, key)                                                                                         \
    ({                                                                                                                   \
        size_t count = sizeof(table) / sizeof((table)[0]), first = (size_t)((key) % count), found = first;              \
        for (size_t step = 0; step < 16; step++) {                                                                       \
            size_t at = (first + step) % count;                                                                          \
            if ((table)[at].field == (key) || (table)[at].field == 0) {                                                  \
                found = at;                                                                                              \
                break;                                                                                                   \
            }                                                                                                            \
        }                                                                                                                \
        &(table)[found];                                                                                                 \
    })

/* The whole path of a name, and whether it is in the folder. */
static int place_of(int directory, const char *name, char *path)
{
    size_t length = 0;
    if (name[0] != '/') {
        char link[64];
        if (directory == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        long found = ask(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, PATH_BYTES - 1, 0);
        if (found < 0)
            return 0;
        length = (size_t)found;
        path[length] = '\0';
        if (name[0] == '\0' || strcmp(name, ".") == 0)
            name = "";
        else if (length + 1 < PATH_BYTES)
            path[length++] = '/';
    }
    if (length + strlen(name) >= PATH_BYTES)
        return 0;
    strcpy(path + length, name);
    return strncmp(path, folder, folder_length) == 0 && (path[folder_length] == '\0' || path[folder_length] == '/');
}

static int is_ours(int file, char *path)
{
    return file >= 0 && place_of(file, "", path);
}

static struct belief *believed(const char *path)
{
    uint64_t key = hash(path);
    struct belief *belief = PLACE(beliefs, key, key);
    return belief->key == key && belief->until > now() ? belief : NULL;
}

static void believe(const char *path, uint64_t file)
{
    uint64_t key = hash(path);
    struct belief *belief = PLACE(beliefs, key, key);
    *belief = (struct belief){.key = key, .until = now() + lifetime, .file = file};
}

static void doubt(const char *path)
{
    struct belief *belief = believed(path);
    if (belief != NULL)
        belief->until = 0;
}

/* This process changes a name: it knows of the name and of its folder what the server knows. */
static void changes(const char *path)
{
    char parent[PATH_BYTES];
    struct stat status;
    doubt(path);
    strcpy(parent, path);
    char *slash = strrchr(parent, '/');
    if (slash == NULL || slash == parent)
        return;
    *slash = '\0';
    if (ask(SYS_newfstatat, AT_FDCWD, (long)parent, (long)&status, 0, 0) != 0)
        return;
    uint64_t file = file_of(&status);
    struct listing *listing = PLACE(listings, folder, file);
    if (listing->folder == file)
        listing->until = 0;
    struct attributes *kept = PLACE(attributes, file, file);
    if (kept->file == file)
        kept->until = 0;
}

static void keep(const struct stat *status)
{
    uint64_t file = file_of(status);
    struct attributes *kept = PLACE(attributes, file, file);
    *kept = (struct attributes){
        .file = file,
        .until = now() + lifetime,
        .links = status->st_nlink,
        .size = status->st_size,
        .seconds = status->st_mtim.tv_sec,
        .nanoseconds = status->st_mtim.tv_nsec,
    };
}

/* The attributes that this process still believes; those of the server are kept where there are none. */
static struct attributes *kept_of(const struct stat *status)
{
    uint64_t file = file_of(status);
    struct attributes *kept = PLACE(attributes, file, file);
    if (kept->file != file || kept->until <= now())
        keep(status);
    return kept;
}

static void make_old(struct stat *status)
{
    struct attributes *kept = kept_of(status);
    if (kept->size < 0) {
        uint64_t links = kept->links;
        keep(status);
        kept->links = links;
    }
    status->st_nlink = kept->links;
    status->st_size = kept->size;
    status->st_mtim.tv_sec = kept->seconds;
    status->st_mtim.tv_nsec = kept->nanoseconds;
}

/* Looks a name up as the client does: 0, or the error that it gets without, or in spite of, the server's answer. */
static long look_up(const char *path)
{
    struct stat status;
    struct belief *belief = believed(path);
    if (belief != NULL && belief->file == 0)
        return -ENOENT;
    long result = ask(SYS_newfstatat, AT_FDCWD, (long)path, (long)&status, AT_SYMLINK_NOFOLLOW, 0);
    if (belief != NULL && (result != 0 || file_of(&status) != belief->file)) {
        /* It was removed or replaced; the client finds that out by the handle it has. */
        belief->until = 0;
        return -ESTALE;
    }
    if (result == -ENOENT)
        believe(path, 0);
    else if (result == 0)
        believe(path, file_of(&status));
    return 0;
}

static long open_in(const char *path, long directory, long name, long flags, long mode)
{
    struct stat status;
    int is_folder_itself = strcmp((const char *)name, ".") == 0;
    if (draw(stale_per_mille))
        return -ESTALE;
    if (flags & O_CREAT) {
        changes(path);
    } else if (!is_folder_itself) {
        long error = look_up(path);
        if (error != 0)
            return error;
    }
    long file = ask(SYS_openat, directory, name, flags, mode, 0);
    if (file < 0 || ask(SYS_fstat, file, (long)&status, 0, 0, 0) != 0)
        return file == -ENOENT && is_folder_itself ? -ESTALE : file;
    if (S_ISDIR(status.st_mode)) {
        if (status.st_nlink == 0) {
            ask(SYS_close, file, 0, 0, 0, 0);
            return -ESTALE;
        }
        return file;
    }
    /* Close-to-open: a file that is opened is as the server has it. */
    keep(&status);
    /* Its own writes it knows: the size is learnt when it is asked for next. */
    if ((flags & O_ACCMODE) != O_RDONLY)
        PLACE(attributes, file, file_of(&status))->size = -1;
    if (flags & O_CREAT)
        believe(path, file_of(&status));
    long high = ask(SYS_fcntl, file, flags & O_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, FIRST_FILE, 0, 0);
    if (high < 0)
        return file;
    ask(SYS_close, file, 0, 0, 0, 0);
    return high;
}

static long list_in(int file, long buffer, size_t room)
{
    struct stat status;
    if (file >= FILES)
        return ask(SYS_getdents64, file, buffer, (long)room, 0, 0);
    struct reading *reading = &readings[file];
    if (!reading->begun) {
        if (draw(stale_per_mille))
            return -ESTALE;
        if (ask(SYS_fstat, file, (long)&status, 0, 0, 0) != 0 || status.st_nlink == 0)
            return -ESTALE;
        uint64_t key = file_of(&status);
        struct listing *listing = PLACE(listings, folder, key);
        if (listing->folder != key || listing->until <= now()) {
            listing->folder = key;
            listing->length = 0;
            listing->until = now() + lifetime;
            for (;;) {
                size_t left = sizeof listing->bytes - listing->length;
                long more = left < 1024 ? -EINVAL
                                        : ask(SYS_getdents64, file, (long)(listing->bytes + listing->length), (long)left, 0, 0);
                if (more == 0)
                    break;
                if (more < 0) {
                    /* Larger than the table: from its start, as the server has it. */
                    listing->until = 0;
                    ask(SYS_lseek, file, 0, SEEK_SET, 0, 0);
                    reading->begun = reading->through = 1;
                    return ask(SYS_getdents64, file, buffer, (long)room, 0, 0);
                }
                listing->length += (size_t)more;
            }
        }
        memcpy(reading->bytes, listing->bytes, listing->length);
        reading->length = listing->length;
        reading->position = 0;
        reading->begun = 1;
        reading->through = 0;
    }
    if (reading->through)
        return ask(SYS_getdents64, file, buffer, (long)room, 0, 0);
    size_t given = 0;
    while (reading->position < reading->length) {
        /* The length of an entry lies behind its two numbers. */
        uint16_t size;
        memcpy(&size, reading->bytes + reading->position + 16, sizeof size);
        if (given + size > room)
            break;
        memcpy((char *)buffer + given, reading->bytes + reading->position, size);
        given += size;
        reading->position += size;
    }
    return given == 0 && reading->position < reading->length ? -EINVAL : (long)given;
}

static long change(long number, const char *path, long a, long b, long c, long d, long e)
{
    changes(path);
    long result = ask(number, a, b, c, d, e);
    changes(path);
    return result;
}

/* The answer of a server that does a thing twice, since its first answer was lost. */
static long lose(long result, long second)
{
    return result == 0 && draw(lost_per_mille) ? second : result;
}

static long serve(long number, long a, long b, long c, long d, long e)
{
    char path[PATH_BYTES], other[PATH_BYTES];
    struct stat status;
    long result;
    switch (number) {
#ifdef SYS_open
    case SYS_open:
        return serve(SYS_openat, AT_FDCWD, a, b, c, 0);
    case SYS_stat:
        return serve(SYS_newfstatat, AT_FDCWD, a, b, 0, 0);
    case SYS_lstat:
        return serve(SYS_newfstatat, AT_FDCWD, a, b, AT_SYMLINK_NOFOLLOW, 0);
    case SYS_mkdir:
        return serve(SYS_mkdirat, AT_FDCWD, a, b, 0, 0);
    case SYS_unlink:
        return serve(SYS_unlinkat, AT_FDCWD, a, 0, 0, 0);
    case SYS_rmdir:
        return serve(SYS_unlinkat, AT_FDCWD, a, AT_REMOVEDIR, 0, 0);
    case SYS_link:
        return serve(SYS_linkat, AT_FDCWD, a, AT_FDCWD, b, 0);
    case SYS_rename:
        return serve(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0);
#endif
#ifdef SYS_renameat
    case SYS_renameat:
        return serve(SYS_renameat2, a, b, c, d, 0);
#endif
    case SYS_openat:
        if (place_of((int)a, (const char *)b, path)) {
            struct timespec pause = {.tv_sec = slow_milliseconds / 1000, .tv_nsec = slow_milliseconds % 1000 * 1000000l};
            nanosleep(&pause, NULL);
            result = open_in(path, a, b, c, d);
        } else {
            result = ask(number, a, b, c, d, e);
        }
        if (result >= 0 && result < FILES)
            readings[result].begun = 0;
        return result;
    case SYS_newfstatat:
        if (!place_of((int)a, (const char *)b, path))
            return ask(number, a, b, c, d, e);
        if (*(const char *)b == '\0')
            return serve(SYS_fstat, a, c, 0, 0, 0);
        if ((result = look_up(path)) != 0 || (result = ask(number, a, b, c, d, e)) != 0)
            return result;
        make_old((struct stat *)c);
        return 0;
    case SYS_statx:
        if (!place_of((int)a, (const char *)b, path))
            return ask(number, a, b, c, d, e);
        if (*(const char *)b != '\0' && (result = look_up(path)) != 0)
            return result;
        if ((result = ask(number, a, b, c, d, e)) != 0)
            return result;
        if (*(const char *)b != '\0' && ask(SYS_newfstatat, a, b, (long)&status, c & AT_SYMLINK_NOFOLLOW, 0) == 0) {
            struct statx *found = (struct statx *)e;
            make_old(&status);
            found->stx_nlink = (uint32_t)status.st_nlink;
            found->stx_size = (uint64_t)status.st_size;
            found->stx_mtime.tv_sec = status.st_mtim.tv_sec;
            found->stx_mtime.tv_nsec = (uint32_t)status.st_mtim.tv_nsec;
        }
        return 0;
    case SYS_fstat:
        if ((result = ask(number, a, b, 0, 0, 0)) != 0 || !is_ours((int)a, path) || !S_ISDIR(((struct stat *)b)->st_mode))
            return result;
        if (((struct stat *)b)->st_nlink == 0) {
            struct attributes *kept = PLACE(attributes, file, file_of((struct stat *)b));
            if (kept->file != file_of((struct stat *)b) || kept->until <= now())
                return -ESTALE;
        }
        make_old((struct stat *)b);
        return 0;
    case SYS_getdents64:
        return is_ours((int)a, path) ? list_in((int)a, b, (size_t)c) : ask(number, a, b, c, d, e);
    case SYS_read:
        if (is_ours((int)a, path) && ask(SYS_fstat, a, (long)&status, 0, 0, 0) == 0 && S_ISREG(status.st_mode) &&
            (draw(stale_per_mille) || (status.st_nlink == 0 && draw(500))))
            return -ESTALE;
        return ask(number, a, b, c, d, e);
    case SYS_mkdirat:
        if (!place_of((int)a, (const char *)b, path))
            return ask(number, a, b, c, d, e);
        return lose(change(number, path, a, b, c, d, e), -EEXIST);
    case SYS_unlinkat:
        if (!place_of((int)a, (const char *)b, path))
            return ask(number, a, b, c, d, e);
        return lose(change(number, path, a, b, c, d, e), -ENOENT);
    case SYS_linkat:
        if (!place_of((int)c, (const char *)d, path))
            return ask(number, a, b, c, d, e);
        return lose(change(number, path, a, b, c, d, e), -EEXIST);
    case SYS_renameat2:
        if (!place_of((int)c, (const char *)d, path))
            return ask(number, a, b, c, d, e);
        if (e != 0)
            return -EINVAL;
        if (place_of((int)a, (const char *)b, other))
            changes(other);
        result = change(number, path, a, b, c, d, e);
        if (place_of((int)a, (const char *)b, other))
            changes(other);
        return result;
    case SYS_flock:
        return is_ours((int)a, path) ? -ENOLCK : ask(number, a, b, c, d, e);
    case SYS_fcntl:
        if ((b == F_SETLK || b == F_SETLKW || b == F_OFD_SETLK || b == F_OFD_SETLKW) && is_ours((int)a, path))
            return -ENOLCK;
        return ask(number, a, b, c, d, e);
    default:
        return ask(number, a, b, c, d, e);
    }
}

static void caught(int signal, siginfo_t *info, void *machine)
{
    (void)signal;
    ucontext_t *context = machine;
    int error = errno;
    while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {
    }
    long result = serve(info->si_syscall, (long)ARGUMENT(context, 0), (long)ARGUMENT(context, 1), (long)ARGUMENT(context, 2),
                        (long)ARGUMENT(context, 3), (long)ARGUMENT(context, 4));
    atomic_flag_clear_explicit(&busy, memory_order_release);
    errno = error;
    RESULT(context) = result;
}

static const int CAUGHT[] = {
#ifdef SYS_open
    SYS_open,  SYS_stat, SYS_lstat, SYS_mkdir, SYS_unlink, SYS_rmdir, SYS_link, SYS_rename,
#endif
#ifdef SYS_renameat
    SYS_renameat,
#endif
    SYS_openat, SYS_newfstatat, SYS_statx, SYS_fstat, SYS_getdents64, SYS_mkdirat, SYS_unlinkat, SYS_linkat, SYS_renameat2,
    SYS_flock, SYS_fcntl,
};

#define COUNT (sizeof CAUGHT / sizeof CAUGHT[0])
#define OF(field) ((uint32_t)offsetof(struct seccomp_data, field))

static void refuse(const char *what)
{
    fprintf(stderr, "nfs_like: %s: %s\n", what, strerror(errno));
    _exit(99);
}

static unsigned number_of(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : (unsigned)strtoul(text, NULL, 10);
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("NFS_LIKE_FOLDER"), *seconds = getenv("NFS_LIKE_SECONDS");
    if (path == NULL)
        return;
    if (realpath(path, folder) == NULL)
        refuse(path);
    folder_length = strlen(folder);
    lifetime = (uint64_t)((seconds == NULL ? 3.0 : strtod(seconds, NULL)) * 1e6);
    stale_per_mille = number_of("NFS_LIKE_STALE");
    lost_per_mille = number_of("NFS_LIKE_LOST");
    slow_milliseconds = number_of("NFS_LIKE_SLOW");
    state = (now() ^ ((uint64_t)getpid() << 32)) | 1;

    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
    sigfillset(&action.sa_mask);
    if (sigaction(SIGSYS, &action, NULL) != 0)
        refuse("sigaction");

    struct sock_filter program[12 + 2 * COUNT + 8];
    unsigned short length = 0;
#define ADD(...) program[length++] = (struct sock_filter)__VA_ARGS__
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, OF(arch)));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0));
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, OF(args[5])));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MARK, 0, 1));
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, OF(nr)));
    for (size_t at = 0; at < COUNT; at++) {
        ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)CAUGHT[at], 0, 1));
        ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
    }
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 1, 0));
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, OF(args[0])));
    ADD(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, FIRST_FILE, 0, 1));
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    struct sock_fprog filter = {.len = length, .filter = program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        refuse("seccomp");
}
