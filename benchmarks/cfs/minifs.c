/*
 * minifs: the baseline of benchmarks/bench_mount.py.
 *
 * The least that a libfuse3 filesystem can do and still be one: files and directories in memory, one thread,
 * no permissions of its own, nothing on disk. Every kernel cache timeout is 0, so that each operation costs
 * the round trip to the server; what another filesystem takes longer than this one is its own work.
 *
 *     cc -O2 minifs.c -o minifs $(pkg-config --cflags --libs fuse3)
 *     minifs -s -f MOUNTPOINT        (-s is required: nothing here is locked)
 *
 * A name is found in one hash table keyed by (directory, name), so a lookup costs one probe per path
 * component however many names a directory holds, and renaming a directory moves one entry.
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME_LIMIT 255

struct node {
    struct node *parent;                  /* NULL for the root and for what has been removed */
    struct node *next_in_bucket;
    struct node *children;                /* directories: first child */
    struct node *previous, *next;         /* siblings */
    uint64_t hash;
    ino_t ino;
    mode_t mode;
    uid_t uid;
    gid_t gid;
    unsigned handles;                     /* open handles: a removed node lives until the last is released */
    struct timespec atime, mtime, ctime;
    char *data;
    size_t size, capacity;
    char *name;
};

static struct node root;
static ino_t last_ino = 1;

static struct node **buckets;
static size_t bucket_count = 1024;        /* a power of two */
static size_t entry_count;

/* ---- the table of names ---- */

/* FNV-1a over the name, begun from the directory's inode number. */
static uint64_t hash_name(const struct node *parent, const char *name, size_t length)
{
    uint64_t hash = 14695981039346656037ULL ^ (uint64_t)parent->ino;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 1099511628211ULL;
    return hash ^ (hash >> 29);
}

static struct node *find_child(const struct node *parent, const char *name, size_t length)
{
    uint64_t hash = hash_name(parent, name, length);
    for (struct node *n = buckets[hash & (bucket_count - 1)]; n; n = n->next_in_bucket)
        if (n->hash == hash && n->parent == parent && !strncmp(n->name, name, length) && !n->name[length])
            return n;
    return NULL;
}

static void grow_table(void)
{
    size_t count = bucket_count * 2;
    struct node **grown = calloc(count, sizeof *grown);
    if (!grown)
        return;                           /* longer chains, nothing worse */
    for (size_t i = 0; i < bucket_count; i++)
        for (struct node *n = buckets[i], *next; n; n = next) {
            next = n->next_in_bucket;
            n->next_in_bucket = grown[n->hash & (count - 1)];
            grown[n->hash & (count - 1)] = n;
        }
    free(buckets);
    buckets = grown;
    bucket_count = count;
}

static void attach(struct node *n, struct node *parent)
{
    n->parent = parent;
    n->hash = hash_name(parent, n->name, strlen(n->name));
    if (++entry_count > bucket_count)
        grow_table();
    struct node **bucket = &buckets[n->hash & (bucket_count - 1)];
    n->next_in_bucket = *bucket;
    *bucket = n;
    n->previous = NULL;
    n->next = parent->children;
    if (n->next)
        n->next->previous = n;
    parent->children = n;
    clock_gettime(CLOCK_REALTIME, &parent->mtime);
    parent->ctime = parent->mtime;
}

static void detach(struct node *n)
{
    struct node **link = &buckets[n->hash & (bucket_count - 1)];
    while (*link != n)
        link = &(*link)->next_in_bucket;
    *link = n->next_in_bucket;
    entry_count--;
    if (n->previous)
        n->previous->next = n->next;
    else
        n->parent->children = n->next;
    if (n->next)
        n->next->previous = n->previous;
    clock_gettime(CLOCK_REALTIME, &n->parent->mtime);
    n->parent->ctime = n->parent->mtime;
    n->parent = NULL;
}

static void discard_if_unused(struct node *n)
{
    if (n->parent || n->handles || n == &root)
        return;
    free(n->data);
    free(n->name);
    free(n);
}

/* ---- paths ---- */

/* The node at PATH, or NULL with the reason (negative errno) in *ERROR. */
static struct node *find_path(const char *path, int *error)
{
    struct node *n = &root;
    while (*path == '/')
        path++;
    while (*path) {
        size_t length = strcspn(path, "/");
        if (!S_ISDIR(n->mode)) {
            *error = -ENOTDIR;
            return NULL;
        }
        if (!(n = find_child(n, path, length))) {
            *error = -ENOENT;
            return NULL;
        }
        path += length;
        while (*path == '/')
            path++;
    }
    return n;
}

/* The node an operation is about: the open handle's if there is one (PATH may be NULL then), or PATH's. */
static struct node *find_node(const char *path, const struct fuse_file_info *fi, int *error)
{
    return fi && fi->fh ? (struct node *)(uintptr_t)fi->fh : find_path(path, error);
}

/* The directory that holds PATH's last component, which *NAME is set to. */
static struct node *find_parent(const char *path, const char **name, int *error)
{
    const char *slash = strrchr(path, '/');
    char directory[4096];
    size_t length = (size_t)(slash - path);
    *name = slash + 1;
    if (length >= sizeof directory || strlen(*name) > NAME_LIMIT) {
        *error = -ENAMETOOLONG;
        return NULL;
    }
    memcpy(directory, path, length);
    directory[length] = '\0';
    struct node *parent = find_path(directory, error);
    if (parent && !S_ISDIR(parent->mode)) {
        *error = -ENOTDIR;
        return NULL;
    }
    return parent;
}

static int make_node(const char *path, mode_t mode, struct node **made)
{
    int error = 0;
    const char *name;
    struct node *parent = find_parent(path, &name, &error);
    if (!parent)
        return error;
    if (find_child(parent, name, strlen(name)))
        return -EEXIST;
    struct node *n = calloc(1, sizeof *n);
    if (!n || !(n->name = strdup(name))) {
        free(n);
        return -ENOMEM;
    }
    n->ino = ++last_ino;
    n->mode = mode;
    n->uid = fuse_get_context()->uid;
    n->gid = fuse_get_context()->gid;
    clock_gettime(CLOCK_REALTIME, &n->mtime);
    n->atime = n->ctime = n->mtime;
    attach(n, parent);
    *made = n;
    return 0;
}

static int resize(struct node *n, size_t size)
{
    if (size > n->capacity) {
        size_t capacity = n->capacity ? n->capacity : 1024;
        while (capacity < size)
            capacity *= 2;
        char *data = realloc(n->data, capacity);
        if (!data)
            return -ENOSPC;
        n->data = data;
        n->capacity = capacity;
    }
    if (size > n->size)
        memset(n->data + n->size, 0, size - n->size);
    n->size = size;
    clock_gettime(CLOCK_REALTIME, &n->mtime);
    n->ctime = n->mtime;
    return 0;
}

/* ---- operations ---- */

static void *op_init(struct fuse_conn_info *conn, struct fuse_config *config)
{
    config->entry_timeout = 0;
    config->attr_timeout = 0;
    config->negative_timeout = 0;
    config->kernel_cache = 0;             /* open() drops cached pages: each read reaches us */
    config->auto_cache = 0;
    config->use_ino = 1;
    config->nullpath_ok = 1;              /* handles carry their node: no path need be built */
    conn->want &= ~(unsigned)FUSE_CAP_READDIRPLUS; /* attributes sent ahead would expire on arrival */
    conn->want &= ~(unsigned)FUSE_CAP_WRITEBACK_CACHE;
    return NULL;
}

static int op_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    int error = 0;
    struct node *n = find_node(path, fi, &error);
    if (!n)
        return error;
    memset(st, 0, sizeof *st);
    st->st_ino = n->ino;
    st->st_mode = n->mode;
    st->st_nlink = S_ISDIR(n->mode) ? 2 : n->parent ? 1 : 0;
    st->st_uid = n->uid;
    st->st_gid = n->gid;
    st->st_size = (off_t)n->size;
    st->st_blocks = (blkcnt_t)((n->size + 511) / 512);
    st->st_atim = n->atime;
    st->st_mtim = n->mtime;
    st->st_ctim = n->ctime;
    return 0;
}

static int op_opendir(const char *path, struct fuse_file_info *fi)
{
    int error = 0;
    struct node *n = find_path(path, &error);
    if (!n)
        return error;
    if (!S_ISDIR(n->mode))
        return -ENOTDIR;
    n->handles++;
    fi->fh = (uintptr_t)n;
    return 0;
}

static int op_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
                      struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
    (void)path, (void)offset, (void)flags;
    struct node *directory = (struct node *)(uintptr_t)fi->fh;
    fill(buffer, ".", NULL, 0, 0);
    fill(buffer, "..", NULL, 0, 0);
    for (struct node *n = directory->children; n; n = n->next) {
        struct stat st = {.st_ino = n->ino, .st_mode = n->mode};
        if (fill(buffer, n->name, &st, 0, 0))
            return -ENOMEM;               /* offset 0: libfuse buffers the whole listing itself */
    }
    return 0;
}

static int op_mkdir(const char *path, mode_t mode)
{
    struct node *n;
    return make_node(path, S_IFDIR | (mode & 07777), &n);
}

static int op_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    struct node *n;
    int error = make_node(path, S_IFREG | (mode & 07777), &n);
    if (error)
        return error;
    n->handles++;
    fi->fh = (uintptr_t)n;
    return 0;
}

static int op_open(const char *path, struct fuse_file_info *fi)
{
    int error = 0;
    struct node *n = find_path(path, &error);
    if (!n)
        return error;
    if (S_ISDIR(n->mode))
        return -EISDIR;
    if ((fi->flags & O_TRUNC) && (error = resize(n, 0)))
        return error;
    n->handles++;
    fi->fh = (uintptr_t)n;
    return 0;
}

static int op_read(const char *path, char *buffer, size_t length, off_t offset, struct fuse_file_info *fi)
{
    (void)path;
    const struct node *n = (const struct node *)(uintptr_t)fi->fh;
    if ((size_t)offset >= n->size)
        return 0;
    if (length > n->size - (size_t)offset)
        length = n->size - (size_t)offset;
    memcpy(buffer, n->data + offset, length);
    return (int)length;
}

static int op_write(const char *path, const char *buffer, size_t length, off_t offset,
                    struct fuse_file_info *fi)
{
    (void)path;
    struct node *n = (struct node *)(uintptr_t)fi->fh;
    size_t end = (size_t)offset + length;
    int error = resize(n, end > n->size ? end : n->size);
    if (error)
        return error;
    memcpy(n->data + offset, buffer, length);
    return (int)length;
}

static int op_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
    int error = 0;
    struct node *n = find_node(path, fi, &error);
    return n ? resize(n, (size_t)size) : error;
}

/* Answered though there is nothing to do: else the kernel stops sending what a real store commits in. */
static int op_flush(const char *path, struct fuse_file_info *fi)
{
    (void)path, (void)fi;
    return 0;
}

static int op_release(const char *path, struct fuse_file_info *fi)
{
    (void)path;
    struct node *n = (struct node *)(uintptr_t)fi->fh;
    n->handles--;
    discard_if_unused(n);
    return 0;
}

static int op_unlink(const char *path)
{
    int error = 0;
    struct node *n = find_path(path, &error);
    if (!n)
        return error;
    if (S_ISDIR(n->mode))
        return -EISDIR;
    detach(n);
    discard_if_unused(n);
    return 0;
}

static int op_rmdir(const char *path)
{
    int error = 0;
    struct node *n = find_path(path, &error);
    if (!n)
        return error;
    if (!S_ISDIR(n->mode))
        return -ENOTDIR;
    if (n->children)
        return -ENOTEMPTY;
    if (n == &root)
        return -EBUSY;
    detach(n);
    discard_if_unused(n);
    return 0;
}

/* The kernel has already refused to move a directory into itself. */
static int op_rename(const char *from, const char *to, unsigned flags)
{
    int error = 0;
    const char *name;
    if (flags & ~(unsigned)RENAME_NOREPLACE)
        return -EINVAL;
    struct node *n = find_path(from, &error);
    struct node *parent = n ? find_parent(to, &name, &error) : NULL;
    if (!parent)
        return error;
    struct node *target = find_child(parent, name, strlen(name));
    if (target == n)
        return 0;
    if (target && (flags & RENAME_NOREPLACE))
        return -EEXIST;
    if (target && S_ISDIR(target->mode) && !S_ISDIR(n->mode))
        return -EISDIR;
    if (target && !S_ISDIR(target->mode) && S_ISDIR(n->mode))
        return -ENOTDIR;
    if (target && target->children)
        return -ENOTEMPTY;
    char *renamed = strdup(name);
    if (!renamed)
        return -ENOMEM;
    if (target) {
        detach(target);
        discard_if_unused(target);
    }
    detach(n);
    free(n->name);
    n->name = renamed;
    attach(n, parent);
    return 0;
}

static int op_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *fi)
{
    int error = 0;
    struct node *n = find_node(path, fi, &error);
    if (!n)
        return error;
    clock_gettime(CLOCK_REALTIME, &n->ctime);
    if (times[0].tv_nsec != UTIME_OMIT)
        n->atime = times[0].tv_nsec == UTIME_NOW ? n->ctime : times[0];
    if (times[1].tv_nsec != UTIME_OMIT)
        n->mtime = times[1].tv_nsec == UTIME_NOW ? n->ctime : times[1];
    return 0;
}

static const struct fuse_operations operations = {
    .init = op_init,
    .getattr = op_getattr,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .releasedir = op_release,
    .mkdir = op_mkdir,
    .create = op_create,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .truncate = op_truncate,
    .flush = op_flush,
    .release = op_release,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .rename = op_rename,
    .utimens = op_utimens,
};

int main(int argc, char **argv)
{
    root.ino = 1;
    root.mode = S_IFDIR | 0755;
    root.uid = getuid();
    root.gid = getgid();
    clock_gettime(CLOCK_REALTIME, &root.mtime);
    root.atime = root.ctime = root.mtime;
    if (!(buckets = calloc(bucket_count, sizeof *buckets))) {
        fprintf(stderr, "minifs: out of memory\n");
        return 1;
    }
    return fuse_main(argc, argv, &operations, NULL);
}
