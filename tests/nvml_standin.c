/* NVML's own interface, for tests on a machine without a GPU. The devices stand in the file that
 * NVML_STANDIN names, read anew at each call, one line each (MB are 10^6 bytes, _ is a space):
 *
 *   device UUID NAME TOTAL_MB USED_MB
 *   mig UUID NAME TOTAL_MB USED_MB        an instance of the device above it
 *   process UUID PID MB                   MB of -1: the driver doesn't say
 *   graphics UUID PID MB                  a process that only draws
 *   lost                                  from here on every call fails
 *
 * No file is a driver that isn't loaded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BAD = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, LOST = 15 };
enum { MOST = 64 };

typedef struct { char kind[16], uuid[96], name[96]; double a, b; int parent; } Row;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;

static Row rows[MOST];
static int count;

static int load(void) {
    char *path = getenv("NVML_STANDIN"), line[512];
    FILE *file = path ? fopen(path, "r") : NULL;
    int parent = -1, lost = 0;
    count = 0;
    if (!file) return NO_DRIVER;
    while (count < MOST && fgets(line, sizeof line, file)) {
        Row row = {0};
        if (sscanf(line, "%15s", row.kind) != 1) continue;
        if (!strcmp(row.kind, "lost")) { lost = 1; continue; }
        if (!strcmp(row.kind, "device") || !strcmp(row.kind, "mig")) {
            if (sscanf(line, "%*s %95s %95s %lf %lf", row.uuid, row.name, &row.a, &row.b) != 4)
                continue;
            for (char *c = row.name; *c; c++) if (*c == '_') *c = ' ';
            if (row.kind[0] == 'd') { row.parent = -1; parent = count; } else row.parent = parent;
        } else if (sscanf(line, "%*s %95s %lf %lf", row.uuid, &row.a, &row.b) != 3) continue;
        rows[count++] = row;
    }
    fclose(file);
    return lost ? LOST : OK;
}

static Row *row_of(void *handle) { return &rows[(long)handle - 1]; }
static void *handle_of(int index) { return (void *)(long)(index + 1); }

#define LOAD int failed = load(); if (failed) return failed

static int nth(const char *kind, int parent, unsigned n, void **handle) {
    for (int i = 0; i < count; i++)
        if (!strcmp(rows[i].kind, kind) && rows[i].parent == parent && n-- == 0)
            return *handle = handle_of(i), OK;
    return NOT_FOUND;
}

static unsigned number(const char *kind, int parent) {
    unsigned n = 0;
    for (int i = 0; i < count; i++) n += !strcmp(rows[i].kind, kind) && rows[i].parent == parent;
    return n;
}

static int text(char *out, unsigned size, const char *value) {
    if (strlen(value) >= size) return TOO_SMALL;
    strcpy(out, value);
    return OK;
}

static int listed(const char *kind, void *device, unsigned *size, Process *out) {
    unsigned found = 0, room = *size;
    LOAD;
    for (int i = 0; i < count; i++) {
        if (strcmp(rows[i].kind, kind) || strcmp(rows[i].uuid, row_of(device)->uuid)) continue;
        if (out && found < room) {
            out[found].pid = (unsigned)rows[i].a;
            out[found].used = rows[i].b < 0 ? ~0ULL : (unsigned long long)(rows[i].b * 1e6);
        }
        found++;
    }
    *size = found;
    return found > room ? TOO_SMALL : OK;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; int failed = load(); return failed == LOST ? OK : failed; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == NO_DRIVER ? "Driver Not Loaded" : code == LOST ? "GPU is lost" : "stand-in error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { LOAD; return text(out, size, "999.1"); }
int nvmlSystemGetCudaDriverVersion(int *out) { LOAD; *out = 12040; return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { LOAD; *out = number("device", -1); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) { LOAD; return nth("device", -1, index, out); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    LOAD;
    for (int i = 0; i < count; i++)
        if ((rows[i].kind[0] == 'd' || rows[i].kind[0] == 'm') && !strcmp(rows[i].uuid, uuid))
            return *out = handle_of(i), OK;
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(void *d, char *out, unsigned size) { LOAD; return text(out, size, row_of(d)->uuid); }
int nvmlDeviceGetName(void *d, char *out, unsigned size) { LOAD; return text(out, size, row_of(d)->name); }
int nvmlDeviceGetMemoryInfo(void *d, Memory *out) {
    LOAD;
    Row *row = row_of(d);
    double used = row->b;
    for (int i = 0; i < count; i++)
        if (!strcmp(rows[i].kind, "process") && !strcmp(rows[i].uuid, row->uuid) && rows[i].b > 0)
            used += rows[i].b;
    out->total = (unsigned long long)(row->a * 1e6);
    out->used = (unsigned long long)(used * 1e6);
    out->free = out->total > out->used ? out->total - out->used : 0;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *size, Process *out) { return listed("process", d, size, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *size, Process *out) {
    LOAD;
    if (row_of(d)->parent >= 0) return UNSUPPORTED;
    return listed("graphics", d, size, out);
}
int nvmlDeviceGetMigMode(void *d, unsigned *current, unsigned *pending) {
    LOAD;
    *current = *pending = number("mig", (int)((long)d - 1)) > 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *out) { (void)d; LOAD; *out = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned index, void **out) { LOAD; return nth("mig", (int)((long)d - 1), index, out); }
int nvmlDeviceGetEccMode(void *d, unsigned *current, unsigned *pending) { (void)d; *current = *pending = 1; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *out) { (void)d; *out = 300000; return OK; }
