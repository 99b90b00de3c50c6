/* Fault injection below Python: a library for LD_PRELOAD that counts the system calls on files under one folder, and at
 * the n-th of them kills the process, returns an error, writes a torn block or lets the clock jump. Compiled at run time
 * by shim.py, which also says what to do by torture_arm(); without that, every call goes through untouched. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { COUNT, SIGNAL, FAIL_ONCE, FAIL_FROM, TORN, JUMP };  /* actions */
enum { WRITES = 1, READS = 2 };                            /* classes of calls */
enum { FDS = 65536, NEW = 4096 };

/* Shared by a case's processes: whoever makes the n-th call of all is the one. */
struct plan {
    atomic_long calls, jumped;
    long at;
    int action, value, classes, whole_group, no_links, coarse_seconds, hidden_ms;
    char folder[PATH_MAX], last[PATH_MAX + 32];
    atomic_long news;
    struct { unsigned long path; long milliseconds; pid_t by; } new[NEW];  /* files that were made, by hash */
};

static struct plan *plan;
static unsigned char ours[FDS];       /* 1: a file under the folder */

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

void torture_arm(const char *folder, long at, int action, int value, int classes, int whole_group)
{
    void *page = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct plan *made = page;
    snprintf(made->folder, sizeof made->folder, "%s", folder);
    made->at = at, made->action = action, made->value = value, made->classes = classes, made->whole_group = whole_group;
    plan = made;
}

void torture_file_system(int no_links, int coarse_seconds, int hidden_ms)
{
    plan->no_links = no_links, plan->coarse_seconds = coarse_seconds, plan->hidden_ms = hidden_ms;
}

long torture_calls(void) { return plan ? plan->calls : -1; }
const char *torture_last(void) { return plan ? plan->last : ""; }

static int under(const char *path)
{
    if (!plan || !path) return 0;
    size_t length = strlen(plan->folder);
    return strncmp(path, plan->folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* 0: go on; an error's number: fail with it; -1: write a part, then die. */
static int hit(int class, const char *call, const char *path)
{
    if (!plan || !(plan->classes & class)) return 0;
    long number = atomic_fetch_add(&plan->calls, 1) + 1;
    if (plan->at == 0 || number < plan->at || (number > plan->at && plan->action != FAIL_FROM)) return 0;
    if (number == plan->at) snprintf(plan->last, sizeof plan->last, "%s %s", call, path ? path : "");
    switch (plan->action) {
    case SIGNAL: kill(plan->whole_group ? 0 : getpid(), plan->value); return 0;
    case FAIL_ONCE: case FAIL_FROM: return plan->value;
    case TORN: return -1;
    case JUMP: plan->jumped = plan->value; return 0;
    default: return 0;
    }
}

static void die(void) { kill(plan->whole_group ? 0 : getpid(), SIGKILL); for (;;) pause(); }

static int refused(int class, const char *call, const char *path)
{
    if (!under(path)) return 0;
    int error = hit(class, call, path);
    if (error < 0) die();
    return error;
}

static unsigned long hash(const char *text)
{
    unsigned long h = 14695981039346656037ul;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211ul;
    return h;
}

static long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Whether a path is about to be new: a file that replaces another one is never out of sight. */
static int is_new(const char *path) { return plan && plan->hidden_ms && under(path) && faccessat(AT_FDCWD, path, F_OK, 0); }

static void made(const char *path)
{
    long at = atomic_fetch_add(&plan->news, 1) % NEW;
    plan->new[at].by = getpid(), plan->new[at].milliseconds = milliseconds(), plan->new[at].path = hash(path);
}

/* Delayed visibility: what another process made a moment ago is not seen yet. */
static int hidden(const char *path)
{
    if (!plan || !plan->hidden_ms || !under(path)) return 0;
    unsigned long h = hash(path);
    for (long i = 0; i < plan->news && i < NEW; i++)
        if (plan->new[i].path == h && plan->new[i].by != getpid())
            return milliseconds() - plan->new[i].milliseconds < plan->hidden_ms;
    return 0;
}

#define FAIL_IF(condition, number) do { int e_ = (condition); if (e_) { errno = (number) ? (number) : e_; return -1; } } while (0)
#define WRITING(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & O_CREAT))

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        REAL(name);                                                                                                    \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest);                               \
        if (under(path)) {                                                                                             \
            FAIL_IF(!WRITING(flags) && hidden(path), ENOENT);                                                          \
            FAIL_IF(refused(WRITING(flags) ? WRITES : READS, "open", path), 0);                                        \
        }                                                                                                              \
        int fd = real(path, flags, mode);                                                                              \
        if (fd >= 0 && fd < FDS) ours[fd] = under(path);                                                               \
        return fd;                                                                                                     \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
    int name(int folder, const char *path, int flags, ...)                                                             \
    {                                                                                                                  \
        REAL(name);                                                                                                    \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest);                               \
        if (under(path)) FAIL_IF(refused(WRITING(flags) ? WRITES : READS, "open", path), 0);                           \
        int fd = real(folder, path, flags, mode);                                                                      \
        if (fd >= 0 && fd < FDS) ours[fd] = under(path);                                                               \
        return fd;                                                                                                     \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd)
{
    REAL(close);
    if (fd >= 0 && fd < FDS) ours[fd] = 0;
    return real(fd);
}

static int is_ours(int fd) { return plan && fd >= 0 && fd < FDS && ours[fd]; }

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(write);
    if (is_ours(fd)) {
        int error = hit(WRITES, "write", "");
        if (error < 0) { if (real(fd, data, size / 2) >= 0) die(); }
        FAIL_IF(error, 0);
    }
    return real(fd, data, size);
}

ssize_t read(int fd, void *data, size_t size)
{
    REAL(read);
    if (is_ours(fd)) FAIL_IF(hit(READS, "read", ""), 0);
    return real(fd, data, size);
}

#define ON_FD(name)                                                                                                    \
    int name(int fd)                                                                                                   \
    {                                                                                                                  \
        REAL(name);                                                                                                    \
        if (is_ours(fd)) { int error = hit(WRITES, #name, ""); if (error < 0) die(); FAIL_IF(error, 0); }              \
        return real(fd);                                                                                               \
    }
ON_FD(fsync)
ON_FD(fdatasync)

int rename(const char *from, const char *to)
{
    REAL(rename);
    FAIL_IF(refused(WRITES, "rename", to), 0);
    int new = is_new(to), result = real(from, to);
    if (!result && new) made(to);
    return result;
}

int link(const char *from, const char *to)
{
    REAL(link);
    FAIL_IF(plan && plan->no_links && under(to), EPERM);
    FAIL_IF(refused(WRITES, "link", to), 0);
    int new = is_new(to), result = real(from, to);
    if (!result && new) made(to);
    return result;
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    REAL(linkat);
    FAIL_IF(plan && plan->no_links && under(to), EPERM);
    FAIL_IF(refused(WRITES, "link", to), 0);
    int new = is_new(to), result = real(from_folder, from, to_folder, to, flags);
    if (!result && new) made(to);
    return result;
}

int unlink(const char *path) { REAL(unlink); FAIL_IF(refused(WRITES, "unlink", path), 0); return real(path); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); FAIL_IF(refused(WRITES, "mkdir", path), 0); return real(path, mode); }

int utimensat(int folder, const char *path, const struct timespec times[2], int flags)
{
    REAL(utimensat);
    FAIL_IF(refused(WRITES, "utime", path), 0);
    return real(folder, path, times, flags);
}

#define COARSE(found)                                                                                                  \
    do {                                                                                                               \
        if (plan && plan->coarse_seconds) {                                                                            \
            found->st_mtim.tv_nsec = found->st_ctim.tv_nsec = 0;                                                       \
            found->st_mtim.tv_sec -= found->st_mtim.tv_sec % plan->coarse_seconds;                                     \
            found->st_ctim.tv_sec -= found->st_ctim.tv_sec % plan->coarse_seconds;                                     \
        }                                                                                                              \
    } while (0)

#define STAT(name, type)                                                                                               \
    int name(const char *path, struct type *found)                                                                     \
    {                                                                                                                  \
        REAL(name);                                                                                                    \
        FAIL_IF(hidden(path), ENOENT);                                                                                 \
        FAIL_IF(refused(READS, "stat", path), 0);                                                                      \
        int result = real(path, found);                                                                                \
        if (!result) COARSE(found);                                                                                    \
        return result;                                                                                                 \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define STATAT(name, type)                                                                                             \
    int name(int folder, const char *path, struct type *found, int flags)                                              \
    {                                                                                                                  \
        REAL(name);                                                                                                    \
        FAIL_IF(hidden(path), ENOENT);                                                                                 \
        FAIL_IF(refused(READS, "stat", path), 0);                                                                      \
        int result = real(folder, path, found, flags);                                                                 \
        if (!result) COARSE(found);                                                                                    \
        return result;                                                                                                 \
    }
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

#define FOLDERS 64
static struct { DIR *stream; char path[PATH_MAX]; } listed[FOLDERS];

DIR *opendir(const char *path)
{
    REAL(opendir);
    if (under(path)) {
        int error = refused(READS, "opendir", path);
        if (error) { errno = error; return NULL; }
    }
    DIR *stream = real(path);
    if (stream && plan && plan->hidden_ms && under(path))
        for (int i = 0; i < FOLDERS; i++)
            if (!listed[i].stream || listed[i].stream == stream) {
                listed[i].stream = stream;
                snprintf(listed[i].path, PATH_MAX, "%s", path);
                break;
            }
    return stream;
}

int closedir(DIR *stream)
{
    REAL(closedir);
    for (int i = 0; i < FOLDERS; i++) if (listed[i].stream == stream) listed[i].stream = NULL;
    return real(stream);
}

static int hidden_in(DIR *stream, const char *name)
{
    if (!plan || !plan->hidden_ms) return 0;
    char path[PATH_MAX + 300];
    for (int i = 0; i < FOLDERS; i++)
        if (listed[i].stream == stream) {
            snprintf(path, sizeof path, "%s/%s", listed[i].path, name);
            return hidden(path);
        }
    return 0;
}

struct dirent *readdir(DIR *stream)
{
    REAL(readdir);
    struct dirent *entry;
    while ((entry = real(stream)) && hidden_in(stream, entry->d_name)) continue;
    return entry;
}

struct dirent64 *readdir64(DIR *stream)
{
    REAL(readdir64);
    struct dirent64 *entry;
    while ((entry = real(stream)) && hidden_in(stream, entry->d_name)) continue;
    return entry;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    REAL(clock_gettime);
    int result = real(clock, now);
    if (!result && plan && clock == CLOCK_REALTIME) now->tv_sec += plan->jumped;
    return result;
}
