/*
 * fake_driver.c - stands for libcuda.so.1 and libnvidia-ml.so.1 in tests: one GH200 in NUMA mode,
 * whose driver knows better than its product name.  FAKE_DRIVER=broken: nothing starts.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

#define NO_DEVICE     100
#define NOT_SUPPORTED 3

static int is_broken(void)
{
    const char *mode = getenv("FAKE_DRIVER");
    return mode != NULL && strcmp(mode, "broken") == 0;
}

API int cuInit(unsigned flags);
API int cuDeviceGetCount(int *n);
API int cuDeviceGet(int *device, int ordinal);
API int cuDeviceGetName(char *name, int bytes, int device);
API int cuDeviceGetPCIBusId(char *text, int bytes, int device);
API int cuDeviceTotalMem_v2(size_t *bytes, int device);
API int cuDeviceGetAttribute(int *value, int attribute, int device);

int cuInit(unsigned flags)
{
    return flags != 0 || is_broken() ? NO_DEVICE : 0;
}

int cuDeviceGetCount(int *n)
{
    *n = 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal + 7; /* a handle, not an index */
    return 0;
}

int cuDeviceGetName(char *name, int bytes, int device)
{
    snprintf(name, (size_t)bytes, "NVIDIA GH200 480GB");
    return device != 7;
}

int cuDeviceGetPCIBusId(char *text, int bytes, int device)
{
    snprintf(text, (size_t)bytes, "0009:01:00.0");
    return device != 7;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = (size_t)102005473280;
    return device != 7;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    switch (attribute) {
    case 16: *value = 132; break; /* multiprocessors */
    case 100: *value = 1; break;  /* GPU uses the host's page tables */
    case 130: *value = 1; break;  /* memory is a NUMA node */
    case 131: *value = 1; break;  /* which */
    case 134: *value = 0; break;  /* nearest host node */
    default: return 1;
    }
    return device != 7;
}

/* ---- NVML ----------------------------------------------------------------------------------- */

typedef struct pci {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci;

typedef struct memory {
    unsigned long long total, free, used;
} memory;

typedef struct field {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int type, result;
    unsigned long long value;
} field;

API int nvmlInit_v2(void);
API int nvmlShutdown(void);
API int nvmlDeviceGetCount_v2(unsigned *n);
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
API int nvmlDeviceGetPciInfo_v3(void *device, pci *info);
API int nvmlDeviceGetMemoryInfo(void *device, memory *info);
API int nvmlDeviceGetFieldValues(void *device, int n, field *fields);

int nvmlInit_v2(void)
{
    return is_broken() ? 9 : 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = 1;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    static int handle;
    *device = &handle;
    return index != 0;
}

/* NVML writes eight digits of the domain where CUDA writes four. */
int nvmlDeviceGetPciInfo_v3(void *device, pci *info)
{
    snprintf(info->bus_id, sizeof info->bus_id, "00000009:01:00.0");
    return device == NULL;
}

int nvmlDeviceGetMemoryInfo(void *device, memory *info)
{
    *info = (memory){102005473280, 101000000000, 1005473280};
    return device == NULL;
}

int nvmlDeviceGetFieldValues(void *device, int n, field *fields)
{
    for (int f = 0; f < n; f++) {
        fields[f].result = 0;
        if (fields[f].field == 170)
            fields[f].value = 10; /* C2C links */
        else if (fields[f].field == 190)
            fields[f].value = fields[f].scope == 1 ? 1000000 : 700000; /* mW now */
        else if (fields[f].field == 188 && fields[f].scope == 0)
            fields[f].value = 900000; /* mW at most */
        else
            fields[f].result = NOT_SUPPORTED;
    }
    return device == NULL;
}
