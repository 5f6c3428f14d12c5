/* device_present.c - in tests that need a GPU: without one, exit 77 (skipped) and say why. */
#include <stdio.h>
#include <stdlib.h>

#include "device.h"

__attribute__((constructor)) static void require_gpu(void)
{
    if (ls_device_probe_cuda() == LS_OK) return;
    fprintf(stderr, "skipped: %s\n", ls_error());
    exit(77);
}
