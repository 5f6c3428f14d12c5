/* fake_nccl.c - stands for libnccl.so.2 in tests: it tells a version. */
__attribute__((visibility("default"))) int ncclGetVersion(int *version);

int ncclGetVersion(int *version)
{
    *version = 22809;
    return 0;
}
