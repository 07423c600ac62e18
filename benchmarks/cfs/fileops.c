/* The file operations of bench_mount in C, timed one by one: what a client in Python adds to each is left out.
 *
 * A shared library that mount_ops.py loads; run() is its one function. Paths are used in turn, from the first again
 * after the last. It stops after n operations or when limit_ns have passed since start_ns of CLOCK_MONOTONIC (which is
 * slept to). Returns how many were done, or minus errno of the one that failed (its number is then in ends[0]); a read
 * or a listing that is shorter than it must be is EIO. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int written(const char *path, int flags, const char *data, long size)
{
    int handle = open(path, O_WRONLY | O_CLOEXEC | flags, 0644);
    if (handle < 0)
        return errno;
    int failed = write(handle, data, size) == size ? 0 : errno ? errno : EIO;
    return close(handle) && !failed ? errno : failed;
}

static int read_back(const char *path, long size)
{
    char body[4096];
    int handle = open(path, O_RDONLY | O_CLOEXEC);
    if (handle < 0)
        return errno;
    long got = read(handle, body, sizeof body);
    int failed = got == size ? 0 : got < 0 ? errno : EIO;
    close(handle);
    return failed;
}

static int listed(const char *path, long least)
{
    char name[4096];
    struct stat found;
    long count = 0;
    DIR *directory = opendir(path);
    if (!directory)
        return errno;
    for (struct dirent *each; (each = readdir(directory));) {
        if (!strcmp(each->d_name, ".") || !strcmp(each->d_name, ".."))
            continue;
        snprintf(name, sizeof name, "%s/%s", path, each->d_name);
        if (stat(name, &found) == 0)
            count++;
        else if (errno != ENOENT) {
            closedir(directory);
            return errno;
        }
    }
    closedir(directory);
    return count < least ? EIO : 0;
}

static int one(const char *operation, const char *path, const char *data, long size)
{
    struct stat found;
    char moved[4096];
    errno = 0;
    if (!strcmp(operation, "stat"))
        return stat(path, &found) ? errno : 0;
    if (!strcmp(operation, "miss"))
        return stat(path, &found) == 0 ? EEXIST : errno == ENOENT ? 0 : errno;
    if (!strcmp(operation, "read"))
        return read_back(path, size);
    if (!strcmp(operation, "overwrite"))
        return written(path, O_TRUNC, data, size);
    if (!strcmp(operation, "append"))
        return written(path, O_APPEND, data, size);
    if (!strcmp(operation, "create"))
        return written(path, O_CREAT | O_EXCL, data, size);
    if (!strcmp(operation, "unlink"))
        return unlink(path) ? errno : 0;
    if (!strcmp(operation, "readdir"))
        return listed(path, size);
    if (!strcmp(operation, "rename")) {
        snprintf(moved, sizeof moved, "%s.moved", path);
        return rename(path, moved) ? errno : 0;
    }
    return EINVAL;
}

long run(const char *operation, const char **paths, long count, const char *data, long size, long n,
         long long start_ns, long long limit_ns, long long *samples, long long *ends)
{
    struct timespec start = {start_ns / 1000000000LL, start_ns % 1000000000LL};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL) == EINTR)
        ;
    long done = 0;
    long long before = ends[0] = ends[1] = now();
    for (long long give_up = before + limit_ns; done < n && before < give_up; before = ends[1]) {
        int failed = one(operation, paths[done % count], data, size);
        if (failed) {
            ends[0] = done;
            return -failed;
        }
        ends[1] = now();
        samples[done++] = ends[1] - before;
    }
    return done;
}
