/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/doctor_i.h"

#include <dlfcn.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zlib.h>

#include "steptape_version.h"

#define MAX_DEVICES 16
/* Of CUDA's driver API (stable by name and number; its header is not needed). */
enum { CUDA_ERROR_NO_DEVICE_ = 100, COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76 };

void st_doctor_add(struct st_doctor *doctor, const char *what, const char *status,
                   const char *format, ...) {
    if (doctor->count == ST_DOCTOR_MAX_FINDINGS)
        return;
    struct st_finding *finding = &doctor->finding[doctor->count++];
    finding->what = what;
    finding->status = status;
    va_list ap;
    va_start(ap, format);
    vsnprintf(finding->detail, sizeof finding->detail, format, ap);
    va_end(ap);
}

static void examine_program(struct st_doctor *doctor) {
    struct utsname host;
    st_doctor_add(doctor, "steptape", "info", "%s, commit %s", ST_VERSION,
                  ST_COMMIT[0] ? ST_COMMIT : "unknown (not built from a git checkout)");
    if (uname(&host) == 0)
        st_doctor_add(doctor, "system", "info", "%s %s, %s, %ld processors", host.sysname,
                      host.release, host.machine, sysconf(_SC_NPROCESSORS_ONLN));
    st_doctor_add(doctor, "SQLite", "info", "%s (built with %s)", sqlite3_libversion(),
                  SQLITE_VERSION);
    st_doctor_add(doctor, "zlib", "info", "%s (built with %s)", zlibVersion(), ZLIB_VERSION);
#ifdef ST_HAVE_CUDA
    st_doctor_add(doctor, "CUDA build", "ok", "device code of CUDA %s for %s", ST_CUDA_VERSION,
                  ST_CUDA_ARCHITECTURES);
#else
    st_doctor_add(
        doctor, "CUDA build", "missing",
        "built without device code; build where nvcc is on PATH, or with -DST_ENABLE_CUDA=ON");
#endif
}

/* ---- the driver */

struct driver {
    void *library;
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_name)(char *name, int length, int device);
    int (*device_memory)(size_t *bytes, int device);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*error_name)(int error, const char **name);
};

/* A function pointer out of dlsym(), which returns a data pointer. */
static bool find(void *library, const char *name, void *slot) {
    void *address = dlsym(library, name);
    memcpy(slot, &address, sizeof address);
    return address != NULL;
}

static bool find_driver(struct driver *driver) {
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver->library && find(driver->library, "cuInit", &driver->init) &&
           find(driver->library, "cuDriverGetVersion", &driver->version) &&
           find(driver->library, "cuDeviceGetCount", &driver->device_count) &&
           find(driver->library, "cuDeviceGet", &driver->device_get) &&
           find(driver->library, "cuDeviceGetName", &driver->device_name) &&
           find(driver->library, "cuDeviceTotalMem_v2", &driver->device_memory) &&
           find(driver->library, "cuDeviceGetAttribute", &driver->device_attribute) &&
           find(driver->library, "cuGetErrorName", &driver->error_name);
}

bool st_doctor_first_line(const char *path, char *line, size_t size) {
    FILE *file = fopen(path, "re");
    bool found = file && fgets(line, (int)size, file) != NULL;
    if (file)
        fclose(file);
    if (found)
        line[strcspn(line, "\n")] = 0;
    return found;
}

/* Why there is no driver library, by what else there is. */
static const char *missing_driver_hint(void) {
    if (access("/proc/driver/nvidia/version", R_OK) == 0)
        return "the kernel module is loaded but the library is not here: in a container, start it "
               "with the GPU (docker run --gpus all; NVIDIA_DRIVER_CAPABILITIES=compute,utility)";
    if (access("/dev/nvidiactl", F_OK) == 0)
        return "/dev/nvidiactl is here without its kernel module: reinstall the driver, reboot";
    return "no NVIDIA driver is installed; where there is a GPU, `nvidia-smi` shows it once the "
           "driver is";
}

static const char *init_hint(int error) {
    switch (error) {
    case CUDA_ERROR_NO_DEVICE_:
        return "no GPU is visible: see `nvidia-smi -L`, and CUDA_VISIBLE_DEVICES";
    case 803: /* CUDA_ERROR_SYSTEM_DRIVER_MISMATCH */
        return "library and kernel module are of different versions: reboot after the update";
    case 802: /* CUDA_ERROR_SYSTEM_NOT_READY */
        return "NVSwitch machine without its service: start nvidia-fabricmanager";
    case 999: /* CUDA_ERROR_UNKNOWN */
        return "often /dev/nvidia-uvm is missing: run `nvidia-modprobe -u -c=0` as root";
    default:
        return "see `nvidia-smi`";
    }
}

static void examine_device(struct st_doctor *doctor, const struct driver *driver, int ordinal) {
    int device, major = 0, minor = 0;
    size_t memory = 0;
    char name[128] = "?";
    if (driver->device_get(&device, ordinal))
        return;
    driver->device_name(name, sizeof name, device);
    driver->device_memory(&memory, device);
    driver->device_attribute(&major, COMPUTE_CAPABILITY_MAJOR, device);
    driver->device_attribute(&minor, COMPUTE_CAPABILITY_MINOR, device);
    st_doctor_add(doctor, "GPU", major >= 8 ? "ok" : "missing",
                  "%d: %s, compute capability %d.%d, %.1f GiB%s", ordinal, name, major, minor,
                  (double)memory / (1 << 30), major >= 8 ? "" : "; 8.0 or later is needed");
}

/* The number of usable GPUs. */
static int examine_driver(struct st_doctor *doctor) {
    struct driver driver = {0};
    char module[200];
    if (st_doctor_first_line("/proc/driver/nvidia/version", module, sizeof module))
        st_doctor_add(doctor, "kernel module", "info", "%s", module);
    if (!find_driver(&driver)) {
        st_doctor_add(doctor, "CUDA driver", "missing", "%s: %s",
                      driver.library ? "libcuda.so.1 is older than CUDA 6" : "no libcuda.so.1",
                      missing_driver_hint());
        return 0;
    }
    int error = driver.init(0), version = 0, count = 0;
    driver.version(&version);
    if (!error)
        error = driver.device_count(&count);
    if (error) {
        const char *name = NULL;
        driver.error_name(error, &name);
        st_doctor_add(doctor, "CUDA driver", "missing", "libcuda.so.1 does not start: %s (%d): %s",
                      name ? name : "error", error, init_hint(error));
        return 0;
    }
    st_doctor_add(doctor, "CUDA driver", "ok", "supports CUDA %d.%d, %d GPU%s", version / 1000,
                  version % 1000 / 10, count, count == 1 ? "" : "s");
    int before = doctor->count, usable = 0;
    for (int i = 0; i < count && i < MAX_DEVICES; i++)
        examine_device(doctor, &driver, i);
    for (int i = before; i < doctor->count; i++)
        usable += strcmp(doctor->finding[i].status, "ok") == 0;
    return usable; /* the library stays open: the driver does not unload well */
}

/* ---- CUPTI */

enum { CUPTI_13_0 = 130000 }; /* update 1 is 130001 */

static bool try_cupti(const char *path, char *found, size_t size, uint32_t *version) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(uint32_t *) = NULL;
    if (!library)
        return false;
    *version = 0;
    if (find(library, "cuptiGetVersion", &get_version))
        get_version(version);
    snprintf(found, size, "%s", path);
    return true; /* left open, like the driver */
}

/* In the order in which a replay looks. */
static bool find_cupti(const char *cuda_home, char *found, size_t size, uint32_t *version) {
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    static const char *const folders[] = {"extras/CUPTI/lib64", "lib64"};
    const char *const homes[] = {cuda_home, "/usr/local/cuda"};
    for (size_t i = 0; i < 3; i++)
        if (try_cupti(names[i], found, size, version))
            return true;
    for (size_t home = 0; home < 2; home++)
        for (size_t folder = 0; homes[home] && folder < 2; folder++)
            for (size_t i = 0; i < 3; i++) {
                char path[512];
                snprintf(path, sizeof path, "%s/%s/%s", homes[home], folders[folder], names[i]);
                if (try_cupti(path, found, size, version))
                    return true;
            }
    return false;
}

static bool examine_cupti(struct st_doctor *doctor, const char *cuda_home) {
    char path[512];
    uint32_t version;
    if (!find_cupti(cuda_home, path, sizeof path, &version)) {
        st_doctor_add(
            doctor, "CUPTI", "missing",
            "no libcupti: install cuda-cupti (or the CUDA toolkit), or set CUDA_HOME; without it a "
            "replay measures time but no kernel durations and counts no launches");
        return false;
    }
    /* NVIDIA's release notes of 13.0 update 1. */
    bool first = version == CUPTI_13_0;
    st_doctor_add(doctor, "CUPTI", first ? "warning" : "ok", "%s, API version %u%s", path, version,
                  first ? ", that of CUDA 13.0 before update 1, which may crash when it is flushed "
                          "and hang when kernels are no longer recorded: install a later one, or "
                          "record with --launches=count, which does without"
                        : "");
    return true;
}

/* ---- what follows */

static void examine_backends(struct st_doctor *doctor, int gpus, bool cupti) {
    st_doctor_add(doctor, "backend cpu", "ok", "passes count, verify: the CPU references");
    st_doctor_add(doctor, "backend sim", "ok", "pass time, on a device profile: no kernel runs");
#ifdef ST_HAVE_CUDA
    if (gpus)
        st_doctor_add(doctor, "backend cuda", "ok", "passes time, verify%s",
                      cupti ? ", count" : "; not count, which needs CUPTI");
    else
        st_doctor_add(doctor, "backend cuda", "missing", "no usable GPU, see above");
#else
    (void)cupti;
    st_doctor_add(doctor, "backend cuda", "missing", "this program was built without CUDA%s",
                  gpus ? ", though a GPU is here" : ", and no usable GPU is here");
#endif
}

/* Adds what is not there to a list of what a recording needs. */
static void need(char *list, size_t size, bool there, const char *what) {
    size_t used = strlen(list);
    if (!there)
        snprintf(list + used, size - used, "%s%s", used ? ", " : "", what);
}

/* What a recording needs, put together. */
static void examine_recording(struct st_doctor *doctor, const struct st_doctor_places *places,
                              bool gpu, bool cupti) {
    char needs[200] = "";
    bool engine = st_doctor_examine_engine(doctor, places);
    bool library = st_doctor_examine_library(doctor, places);
    bool inject = st_doctor_examine_inject(doctor, places);
    bool folder = st_doctor_examine_folder(doctor, places);
    bool alone = st_doctor_examine_tools(doctor, places);
    need(needs, sizeof needs, engine, "an engine with the plug-in");
    need(needs, sizeof needs, library, "libsteptape_capture.so");
    need(needs, sizeof needs, folder, "a folder with room");
    doctor->can_record = !needs[0];
    if (doctor->can_record)
        st_doctor_add(doctor, "record steps", "ok", "steptape record -o x.tape -- vllm serve ...");
    else
        st_doctor_add(doctor, "record steps", "missing", "see above: %s", needs);
    need(needs, sizeof needs, gpu, "a GPU");
    need(needs, sizeof needs, cupti, "CUPTI");
    need(needs, sizeof needs, inject, "libsteptape_inject.so");
    need(needs, sizeof needs, alone, "CUDA_INJECTION64_PATH for itself");
    doctor->can_record_launches = !needs[0];
    if (doctor->can_record_launches)
        st_doctor_add(doctor, "record launches", "ok",
                      "--launches; whether another CUPTI client is at work inside the engine shows "
                      "only when it runs: then steps are recorded alone, and the tape says so");
    else
        st_doctor_add(doctor, "record launches", "missing", "see above: %s", needs);
}

void st_doctor_examine(struct st_doctor *doctor, const struct st_doctor_places *places) {
    doctor->count = 0;
    examine_program(doctor);
    int gpus = examine_driver(doctor);
    bool cupti = examine_cupti(doctor, places->cuda_home);
    examine_backends(doctor, gpus, cupti);
    examine_recording(doctor, places, gpus > 0, cupti);
}
