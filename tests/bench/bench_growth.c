/*
 * bench_growth.c - whether a (query, key) pair of attention costs the same in a long sequence.
 *
 *   bench_growth [ROUNDS]         default 7; 0 runs everything once and small, to see that it works
 *
 * The last query block of a sequence of S tokens, one head of width 64, bf16, against key blocks
 * taken evenly from the whole sequence: the calls that training makes there, on keys and values of
 * full length.  Every round takes all lengths in turn, so that a change in the machine's speed
 * meets all of them alike.  One thread; processor time, so that other programs do not count. Prints
 * a line for each length and direction: tokens, direction, ns for each pair (least, median).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bf16.h"
#include "ops.h"

enum { WIDTH = 64, ROUNDS_MAX = 101, SAMPLES = 4, LENGTHS = 5, SHORTEST = 32768 };

static int n_rounds = 7;
static int64_t block = 8192, shortest = SHORTEST;

typedef struct operands {
    int64_t tokens;       /* of k, v, dk, dv */
    ls_bf16 *q, *d_o, *o; /* [block, WIDTH] */
    ls_bf16 *k, *v;
    float *o_acc, *dq, *lse, *delta;
    float *dk, *dv;
    int64_t *doc_start;
} operands;

static void *allocate(int64_t n, size_t size)
{
    void *data = calloc((size_t)n, size);
    if (data == NULL) {
        fprintf(stderr, "bench_growth: out of memory\n");
        exit(1);
    }
    return data;
}

/* Numbers in [-1, 1) that every machine repeats. */
static ls_bf16 *make_numbers(int64_t n, uint32_t seed)
{
    ls_bf16 *numbers = allocate(n, sizeof *numbers);
    uint32_t state = seed;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = ls_bf16_from_f32((float)(state >> 8) * 0x1p-23f - 1.0f);
    }
    return numbers;
}

static void open_operands(operands *a, int64_t tokens)
{
    const int64_t n = block * WIDTH;

    *a = (operands){.tokens = tokens,
                    .q = make_numbers(n, 1),
                    .d_o = make_numbers(n, 2),
                    .o = allocate(n, sizeof *a->o),
                    .k = make_numbers(tokens * WIDTH, 3),
                    .v = make_numbers(tokens * WIDTH, 4),
                    .o_acc = allocate(n, sizeof *a->o_acc),
                    .dq = allocate(n, sizeof *a->dq),
                    .lse = allocate(block, sizeof *a->lse),
                    .delta = allocate(block, sizeof *a->delta),
                    .dk = allocate(tokens * WIDTH, sizeof *a->dk),
                    .dv = allocate(tokens * WIDTH, sizeof *a->dv),
                    .doc_start = allocate(block, sizeof *a->doc_start)};
}

static void close_operands(operands *a)
{
    void *all[] = {a->q,  a->d_o, a->o,     a->k,  a->v,  a->o_acc,
                   a->dq, a->lse, a->delta, a->dk, a->dv, a->doc_start};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* ---- one call -------------------------------------------------------------------------------- */

#define FIELDS(a, length, key)                                                                     \
    .q = (a)->q, .k = (a)->k + (key)*WIDTH, .v = (a)->v + (key)*WIDTH,                             \
    .doc_start = (a)->doc_start, .N = block, .M = block, .H = 1, .G = 1, .K = WIDTH,               \
    .q_start = (length)-block, .k_start = (key), .scale = 0.125f, .accumulate = 1,                 \
    .dtype = LS_DTYPE_BF16

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds of one call; the operands go on from what the call before left. */
static double time_call(ls_op op, ls_op_args *args, void **workspace)
{
    const uint64_t bytes = ls_ops_cpu.workspace_bytes(op, args);
    *workspace = allocate((int64_t)bytes + 1, 1);
    const double start = processor_seconds();
    if (ls_ops_run(&ls_ops_cpu, op, NULL, args) != LS_OK) {
        fprintf(stderr, "bench_growth: %s\n", ls_error());
        exit(1);
    }
    const double seconds = processor_seconds() - start;
    free(*workspace);
    return seconds;
}

/* The queries are the last block of `length` tokens, the keys a block from `key` on. */
static double time_forward(const operands *a, int64_t length, int64_t key)
{
    ls_op_args args = {
        .attention_forward = {FIELDS(a, length, key), .o = a->o, .lse = a->lse, .o_acc = a->o_acc}};
    return time_call(LS_OP_attention_forward, &args, &args.attention_forward.workspace);
}

static double time_backward(const operands *a, int64_t length, int64_t key)
{
    ls_op_args args = {.attention_backward = {FIELDS(a, length, key), .dq = a->dq,
                                              .dk = a->dk + key * WIDTH, .dv = a->dv + key * WIDTH,
                                              .d_o = a->d_o, .lse = a->lse, .delta = a->delta}};
    return time_call(LS_OP_attention_backward, &args, &args.attention_backward.workspace);
}

/* ---- all lengths ----------------------------------------------------------------------------- */

static double ns[2][LENGTHS][ROUNDS_MAX]; /* forward, backward; for each pair */

/* Key blocks of a length, all before its last one: none of their pairs is masked. */
static void time_length(const operands *a, int length, int round)
{
    const int64_t tokens = shortest << length, blocks = tokens / block - 1;
    const double pairs = (double)SAMPLES * (double)block * (double)block;
    double forward = 0.0, backward = 0.0;

    for (int64_t i = 0; i < SAMPLES; i++)
        forward += time_forward(a, tokens, i * blocks / SAMPLES * block);
    for (int64_t i = 0; i < SAMPLES; i++)
        backward += time_backward(a, tokens, i * blocks / SAMPLES * block);
    ns[0][length][round] = 1e9 * forward / pairs;
    ns[1][length][round] = 1e9 * backward / pairs;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    char *end = NULL;
    operands a;

    if (argc > 2 || (argc == 2 && (n_rounds = (int)strtol(argv[1], &end, 10), *end != '\0')) ||
        n_rounds < 0 || n_rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_growth [ROUNDS]   0 to %d\n", ROUNDS_MAX);
        return 2;
    }
    if (n_rounds == 0) {
        n_rounds = 1;
        block = 128;
        shortest = 512;
    }
    ls_cpu_threads_set(1);
    open_operands(&a, shortest << (LENGTHS - 1));
    time_length(&a, 0, 0); /* to warm up */
    for (int round = 0; round < n_rounds; round++)
        for (int length = 0; length < LENGTHS; length++) time_length(&a, length, round);
    printf("# kernel %s, query and key blocks of %" PRId64 ", %d rounds\n",
           ls_cpu_attention_kernel_name(LS_DTYPE_BF16, 0), block, n_rounds);
    for (int direction = 0; direction < 2; direction++)
        for (int length = 0; length < LENGTHS; length++) {
            double *all = ns[direction][length];
            qsort(all, (size_t)n_rounds, sizeof *all, compare_doubles);
            printf("%" PRId64 " %s %.4f %.4f\n", shortest << length,
                   direction == 0 ? "forward" : "backward", all[0], all[n_rounds / 2]);
        }
    close_operands(&a);
    return 0;
}
