/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a recording is written, what this process may use, and what else looks into an engine.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "analysis/doctor_i.h"

#define GIB ((double)(1 << 30))
enum { TEST_BYTES = 4096, FEW_FILES = 1024 };
/* File systems whose server may go away under a mapped file (statfs(2)). */
enum {
    MAGIC_NFS = 0x6969,
    MAGIC_SMB2 = 0xfe534d42,
    MAGIC_CIFS = 0xff534d42,
    MAGIC_FUSE = 0x65735546
};

/* ---- the folder */

/* A file without a name: nothing is left behind. */
static int open_unnamed(const char *folder) {
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    char *name;
    if (asprintf(&name, "%s/.steptape-doctor-XXXXXX", folder) < 0)
        return -1;
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0)
        unlink(name);
    free(name);
    return fd;
}

/* What a recorder does to its ring, on one page; NULL, or what failed (errno says why). */
static const char *try_ring(const char *folder) {
    int fd = open_unnamed(folder);
    const char *failed = NULL;
    if (fd < 0)
        return "no file can be made there";
    if ((errno = posix_fallocate(fd, 0, TEST_BYTES)) != 0)
        failed = "space cannot be reserved there";
    else if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        failed = "files cannot be locked there";
    if (!failed) {
        void *page = mmap(NULL, TEST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED)
            failed = "files cannot be mapped there";
        else
            munmap(page, TEST_BYTES);
    }
    int native = errno;
    close(fd);
    errno = native;
    return failed;
}

static bool is_remote(const char *folder) {
    struct statfs fs;
    if (statfs(folder, &fs) < 0)
        return false;
    switch ((uint32_t)fs.f_type) {
    case MAGIC_NFS:
    case (uint32_t)MAGIC_SMB2:
    case (uint32_t)MAGIC_CIFS:
    case MAGIC_FUSE:
        return true;
    default:
        return false;
    }
}

static double free_bytes(const char *folder) {
    struct statvfs fs;
    return statvfs(folder, &fs) == 0 ? (double)fs.f_bavail * (double)fs.f_frsize : -1;
}

static bool examine_place(struct st_doctor *doctor, const struct st_doctor_places *places) {
    const char *failed = try_ring(places->folder);
    double bytes = free_bytes(places->folder), ring = (double)places->ring_bytes;
    if (failed) {
        st_doctor_add(doctor, "folder", "missing", "%.200s: %s: %s; --folder names another",
                      places->folder, failed, strerror(errno));
        return false;
    }
    if (bytes >= 0 && bytes < ring) {
        st_doctor_add(doctor, "folder", "missing",
                      "%.200s: %.3f GiB free, and a recorder reserves %.3f GiB a rank when it "
                      "opens: make room, or record with a smaller --ring",
                      places->folder, bytes / GIB, ring / GIB);
        return false;
    }
    bool remote = is_remote(places->folder);
    const char *status = remote || bytes < 16 * ring ? "warning" : "ok";
    st_doctor_add(doctor, "folder", status,
                  "%.200s: files can be made, mapped and locked, %.1f GiB free%s%s", places->folder,
                  bytes / GIB, bytes < 16 * ring ? "; a long recording needs more" : "",
                  remote ? "; a network's or FUSE file system: an engine dies when a mapped file's "
                           "server goes away, so record to a local disk and move the tape"
                         : "");
    return true;
}

static bool examine_limits(struct st_doctor *doctor, const struct st_doctor_places *places) {
    struct rlimit size, files;
    if (getrlimit(RLIMIT_FSIZE, &size) < 0 || getrlimit(RLIMIT_NOFILE, &files) < 0)
        return true;
    if (size.rlim_cur != RLIM_INFINITY && size.rlim_cur < (rlim_t)places->ring_bytes) {
        st_doctor_add(doctor, "limits", "missing",
                      "files of at most %" PRIu64 " bytes, and the ring alone has %" PRId64
                      ": `ulimit -f unlimited`",
                      (uint64_t)size.rlim_cur, places->ring_bytes);
        return false;
    }
    if (size.rlim_cur != RLIM_INFINITY)
        st_doctor_add(doctor, "limits", "warning",
                      "files of at most %" PRIu64 " bytes: a recording ends there; `ulimit -f "
                      "unlimited`",
                      (uint64_t)size.rlim_cur);
    else if (files.rlim_cur < FEW_FILES)
        st_doctor_add(
            doctor, "limits", "warning",
            "%" PRIu64 " open files a process, few for an engine: `ulimit -n %" PRIu64 "`",
            (uint64_t)files.rlim_cur, (uint64_t)(files.rlim_max < 65536 ? files.rlim_max : 65536));
    else
        st_doctor_add(doctor, "limits", "ok", "files of any size, %" PRIu64 " open ones a process",
                      (uint64_t)files.rlim_cur);
    return true;
}

/* An engine's processes talk through it; steptape does not use it. */
static void examine_shm(struct st_doctor *doctor) {
    double bytes = free_bytes("/dev/shm");
    if (bytes < 0 || access("/dev/shm", W_OK | X_OK) < 0)
        st_doctor_add(doctor, "shared memory", "warning",
                      "/dev/shm cannot be written: %s; an engine of several processes needs it",
                      strerror(errno));
    else
        st_doctor_add(doctor, "shared memory", bytes < GIB ? "warning" : "ok",
                      "/dev/shm, %.1f GiB free%s", bytes / GIB,
                      bytes < GIB ? ": little for an engine of several processes (docker run "
                                    "--ipc=host or --shm-size)"
                                  : "");
}

bool st_doctor_examine_folder(struct st_doctor *doctor, const struct st_doctor_places *places) {
    bool place = examine_place(doctor, places);
    bool limits = examine_limits(doctor, places);
    examine_shm(doctor);
    return place && limits;
}

/* ---- other tools */

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Programs that open CUPTI or the GPU's counters, by the name of their process. */
static bool is_profiler(const char *name) {
    static const char *const names[] = {"nsys",     "ncu",    "nv-hostengine",  "dcgm-exporter",
                                        "dcgmprof", "nvprof", "compute-saniti", "cuda-gdb"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (starts_with(name, names[i]))
            return true;
    return false;
}

/* Appends "NAME (PID)" of those that can be seen; the number of them. */
static int list_profilers(char *text, size_t size) {
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int count = 0;
    size_t used = 0;
    text[0] = 0;
    while (proc && (entry = readdir(proc))) {
        char path[300], name[64];
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        if (!st_doctor_first_line(path, name, sizeof name) || !is_profiler(name))
            continue;
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s (%.20s)", count ? ", " : "",
                                     name, entry->d_name);
        count++;
    }
    if (proc)
        closedir(proc);
    return count;
}

/* Of the driver's parameters; only told, since recording launches reads no counters. */
static void examine_counters(struct st_doctor *doctor) {
    char line[200];
    FILE *file = fopen("/proc/driver/nvidia/params", "re");
    while (file && fgets(line, sizeof line, file))
        if (starts_with(line, "RmProfilingAdminOnly:")) {
            bool admin = strtol(line + strlen("RmProfilingAdminOnly:"), NULL, 10) != 0;
            st_doctor_add(doctor, "GPU counters", "info", "for %s; recording launches needs none",
                          admin ? "administrators only (RmProfilingAdminOnly: 1)" : "everyone");
        }
    if (file)
        fclose(file);
}

/* Whether the one place of an injected library is ours or free. */
static bool examine_injection(struct st_doctor *doctor, const struct st_doctor_places *places) {
    const char *other = places->cuda_injection;
    if (!other || !*other)
        return true;
    char *ours = places->inject ? strdup(places->inject)
                 : places->find_part
                     ? places->find_part("libsteptape_inject.so", "capture/libsteptape_inject.so")
                     : NULL;
    bool same = ours && strcmp(ours, other) == 0;
    free(ours);
    if (same)
        st_doctor_add(doctor, "CUDA_INJECTION64_PATH", "ok", "steptape's own");
    else
        st_doctor_add(doctor, "CUDA_INJECTION64_PATH", "missing",
                      "set to %.200s, and a process has one such library: unset it to record "
                      "launches; steps are recorded all the same",
                      other);
    return same;
}

bool st_doctor_examine_tools(struct st_doctor *doctor, const struct st_doctor_places *places) {
    char names[256];
    bool alone = examine_injection(doctor, places);
    const char *preload = places->ld_preload;
    if (preload && (strstr(preload, "nsys") || strstr(preload, "nsight") ||
                    strstr(preload, "ToolsInjection") || strstr(preload, "InjectionProxy")))
        st_doctor_add(doctor, "LD_PRELOAD", "warning",
                      "%.200s is a profiler's: it may hold CUPTI, which one client has at a time",
                      preload);
    if (places->blocking && *places->blocking && strcmp(places->blocking, "0") != 0)
        st_doctor_add(doctor, "CUDA_LAUNCH_BLOCKING", "warning",
                      "set: every launch waits for its kernel, so times are not the engine's; "
                      "unset it");
    int count = list_profilers(names, sizeof names);
    if (count)
        st_doctor_add(doctor, "other profilers", "warning",
                      "%s: what reads the GPU's counters or holds CUPTI in the engine keeps "
                      "launches from being recorded; stop it for the time of a recording",
                      names);
    else
        st_doctor_add(doctor, "other profilers", "ok",
                      "none among the processes that are seen here");
    examine_counters(doctor);
    return alone;
}
