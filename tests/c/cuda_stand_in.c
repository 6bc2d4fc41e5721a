/* A stand-in for the CUDA driver: it writes the name of each function that is called into the file that STAND_IN_CALLS
 * names. Nothing but loading it may happen where no executor of GPUs is opened. */
#include <stdio.h>
#include <stdlib.h>

static int called(char const *name) {
    char const *path = getenv("STAND_IN_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) fprintf(file, "%s\n", name), fclose(file);
    return 999;
}

int cuInit(unsigned flags) { return (void)flags, called("cuInit"); }

int cuDriverGetVersion(int *version) { return (void)version, called("cuDriverGetVersion"); }

int cuDeviceGetCount(int *count) { return (void)count, called("cuDeviceGetCount"); }

int cuDeviceGet(int *device, int ordinal) { return (void)device, (void)ordinal, called("cuDeviceGet"); }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return (void)value, (void)attribute, (void)device, called("cuDeviceGetAttribute");
}
