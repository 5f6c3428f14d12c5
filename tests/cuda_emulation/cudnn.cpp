/*
 * cudnn.cpp - cuDNN's attention as attention_cudnn.h has it, in double precision on the host.
 *
 * What it is held to: operands it may touch and no other, all of the workspace it asked for (which
 * it fills with NaN), results rounded to bf16, delta from the o it is given, memory layouts as the
 * header says.  It plans as real engines do: the same bytes, and refusal where they are too many.
 */
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "attention_cudnn.h"
#include "emulation.h"
#include "internal.h"

namespace
{

/* For programs that no test steers: the version. */
int32_t version_of_environment()
{
    const char *version = std::getenv("LS_EMULATED_CUDNN");
    return version != nullptr ? std::atoi(version) : 0;
}

ls_emulated_cudnn state = {version_of_environment(), 0, false};
int64_t graphs_built, graphs_alive;

enum { OWN_BYTES = 256 }; /* of the real library 9.19 beyond what formulas say */

float widen(const void *x, int64_t i)
{
    const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(x)[i]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

void narrow(void *y, int64_t i, double value)
{
    const float rounded = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    static_cast<uint16_t *>(y)[i] =
        static_cast<uint16_t>(nan ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

double dot(const void *x, int64_t x_at, const void *y, int64_t y_at, int64_t K)
{
    double sum = 0.0;
    for (int64_t k = 0; k < K; k++)
        sum += static_cast<double>(widen(x, x_at + k)) * static_cast<double>(widen(y, y_at + k));
    return sum;
}

struct keys {
    int64_t first, end;
};

keys seen_by(const ls_cudnn_shape &s, int64_t n)
{
    const int64_t diagonal = n + s.M - s.N;
    keys range = {0, s.causal ? diagonal + 1 : s.M};
    if (s.window > 0 && diagonal - s.window + 1 > 0) range.first = diagonal - s.window + 1;
    return range;
}

/* Scores of one row and head, and what they sum to. */
double score_row(const ls_cudnn_shape &s, const ls_cudnn_operands &x, int64_t n, int64_t h,
                 std::vector<double> *scores)
{
    const keys range = seen_by(s, n);
    const int64_t g = h / (s.H / s.G);
    double most = -INFINITY, sum = 0.0;
    for (int64_t m = range.first; m < range.end; m++) {
        const double score = static_cast<double>(s.scale) *
                             dot(x.q, (n * s.H + h) * s.K, x.k, (m * s.G + g) * s.K, s.K);
        (*scores)[static_cast<size_t>(m)] = score;
        most = std::fmax(most, score);
    }
    for (int64_t m = range.first; m < range.end; m++)
        sum += std::exp((*scores)[static_cast<size_t>(m)] - most);
    return most + std::log(sum);
}

void forward(const ls_cudnn_shape &s, const ls_cudnn_operands &x)
{
    std::vector<double> scores(static_cast<size_t>(s.M)), o(static_cast<size_t>(s.K));
    for (int64_t row = 0; row < s.N * s.H; row++) {
        const int64_t n = row / s.H, h = row % s.H, g = h / (s.H / s.G);
        const double lse = score_row(s, x, n, h, &scores);
        const keys range = seen_by(s, n);
        std::fill(o.begin(), o.end(), 0.0);
        for (int64_t m = range.first; m < range.end; m++) {
            const double p = std::exp(scores[static_cast<size_t>(m)] - lse);
            for (int64_t k = 0; k < s.K; k++)
                o[static_cast<size_t>(k)] +=
                    p * static_cast<double>(widen(x.v, (m * s.G + g) * s.K + k));
        }
        for (int64_t k = 0; k < s.K; k++) narrow(x.o, row * s.K + k, o[static_cast<size_t>(k)]);
        x.lse[h * s.N + n] = static_cast<float>(lse);
    }
}

void backward(const ls_cudnn_shape &s, const ls_cudnn_operands &x)
{
    const size_t n_keys = static_cast<size_t>(s.M * s.G * s.K);
    std::vector<double> scores(static_cast<size_t>(s.M)), dq(static_cast<size_t>(s.K));
    std::vector<double> dk(n_keys, 0.0), dv(n_keys, 0.0);
    for (int64_t row = 0; row < s.N * s.H; row++) {
        const int64_t n = row / s.H, h = row % s.H, g = h / (s.H / s.G), at = row * s.K;
        const double delta = dot(x.d_o, at, x.o, at, s.K);
        const double lse = static_cast<double>(x.lse[h * s.N + n]);
        const keys range = seen_by(s, n);
        (void)score_row(s, x, n, h, &scores);
        std::fill(dq.begin(), dq.end(), 0.0);
        for (int64_t m = range.first; m < range.end; m++) {
            const int64_t key = (m * s.G + g) * s.K;
            const double p = std::exp(scores[static_cast<size_t>(m)] - lse);
            const double ds =
                p * static_cast<double>(s.scale) * (dot(x.d_o, at, x.v, key, s.K) - delta);
            for (int64_t k = 0; k < s.K; k++) {
                dq[static_cast<size_t>(k)] += ds * static_cast<double>(widen(x.k, key + k));
                dk[static_cast<size_t>(key + k)] += ds * static_cast<double>(widen(x.q, at + k));
                dv[static_cast<size_t>(key + k)] += p * static_cast<double>(widen(x.d_o, at + k));
            }
        }
        for (int64_t k = 0; k < s.K; k++) narrow(x.dq, at + k, dq[static_cast<size_t>(k)]);
    }
    for (size_t i = 0; i < n_keys; i++) {
        narrow(x.dk, static_cast<int64_t>(i), dk[i]);
        narrow(x.dv, static_cast<int64_t>(i), dv[i]);
    }
}

uint64_t wanted_bytes(const ls_cudnn_shape *s)
{
    const uint64_t rows = static_cast<uint64_t>(s->N * s->H), K = static_cast<uint64_t>(s->K);
    uint64_t bytes = OWN_BYTES + state.more_bytes;
    if (!s->backward) return bytes;
    if (s->G < s->H) bytes += 4 * static_cast<uint64_t>(s->M * s->H) * K;
    return bytes + 4 * rows * K + 4 * rows;
}

} // namespace

struct ls_cudnn_graph {
    ls_cudnn_shape shape;
    uint64_t bytes;
};

extern "C" {

void ls_emulation_cudnn(const ls_emulated_cudnn *cudnn)
{
    state = *cudnn;
    graphs_built = 0;
}

int64_t ls_emulation_cudnn_graphs(void)
{
    return graphs_built;
}

int64_t ls_emulation_cudnn_graphs_alive(void)
{
    return graphs_alive;
}

ls_status ls_cudnn_open(void)
{
    if (state.version == 0) return LS_FAIL(LS_ERR_UNSUPPORTED, "the emulated GPU has no cuDNN");
    return LS_OK;
}

int32_t ls_cudnn_version(void)
{
    return state.version;
}

ls_status ls_cudnn_graph_build(const ls_cudnn_shape *shape, uint64_t workspace_max,
                               ls_cudnn_graph **graph)
{
    const uint64_t bytes = wanted_bytes(shape);
    if (shape->M < shape->N || shape->H % shape->G != 0)
        ls_emulated_abort("a graph of cuDNN with %lld rows and %lld keys",
                          static_cast<long long>(shape->N), static_cast<long long>(shape->M));
    if (bytes > workspace_max)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "cuDNN: N %lld, M %lld: emulated wants %llu bytes",
                       static_cast<long long>(shape->N), static_cast<long long>(shape->M),
                       static_cast<unsigned long long>(bytes));
    *graph = new ls_cudnn_graph{*shape, bytes};
    graphs_built++;
    graphs_alive++;
    return LS_OK;
}

void ls_cudnn_graph_free(ls_cudnn_graph *graph)
{
    if (graph != nullptr) graphs_alive--;
    delete graph;
}

uint64_t ls_cudnn_graph_bytes(const ls_cudnn_graph *graph)
{
    return graph->bytes;
}

const char *ls_cudnn_graph_engine(const ls_cudnn_graph *)
{
    return "emulated";
}

ls_status ls_cudnn_graph_run(ls_cudnn_graph *graph, void *stream, const ls_cudnn_operands *operands)
{
    const ls_cudnn_shape s = graph->shape;
    const ls_cudnn_operands x = *operands;
    const uint64_t bytes = graph->bytes;
    const void *const wide[] = {x.q, x.k, x.v, x.o, x.d_o, x.dq, x.dk, x.dv};

    if (state.run_fails)
        return LS_FAIL(LS_ERR_DEVICE, "cuDNN: N %lld, M %lld: emulated failure",
                       static_cast<long long>(s.N), static_cast<long long>(s.M));
    for (const void *at : wide)
        if (reinterpret_cast<uintptr_t>(at) % 16 != 0)
            ls_emulated_abort("an operand of cuDNN that 16-byte accesses do not reach");
    if (reinterpret_cast<uintptr_t>(x.workspace) % 256 != 0)
        ls_emulated_abort("cuDNN's workspace is not aligned to 256 bytes");
    const cudaError_t error = ls_emulated_enqueue(static_cast<cudaStream_t>(stream), [=] {
        std::memset(x.workspace, 0xff, bytes);
        if (s.backward)
            backward(s, x);
        else
            forward(s, x);
    });
    return error == cudaSuccess ? LS_OK : LS_FAIL(LS_ERR_DEVICE, "cuDNN: the stream has failed");
}

} /* extern "C" */
