/*
 * attention_cudnn.cpp - cuDNN's attention by its C++ frontend, whose headers alone are built in:
 * the library itself is loaded when the first graph is asked for, so a program built with it starts
 * on a machine that has none.
 *
 * Tensors keep our layout, [N, H, K], which the frontend calls [1, H, N, K] with strides.  Engines
 * come from cuDNN's heuristic, best first, but for those that want more workspace than they may.
 * What the frontend throws is caught here: nothing above knows of exceptions.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include "attention_cudnn.h"
#include "attention_cudnn_planner.h"

namespace cudnn_frontend
{
void *cudnn_dlhandle = nullptr; /* where the frontend looks cuDNN's functions up */
}

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using tensor = std::shared_ptr<Tensor_attributes>;

#define TEXT_OF(x)    #x
#define TEXT(x)       TEXT_OF(x)
#define CUDNN_LIBRARY "libcudnn.so." TEXT(CUDNN_MAJOR)

#if CUDNN_FRONTEND_VERSION < 11400
#error "cuDNN's frontend 1.14 or later is needed: graphs planned for a described device"
#endif

namespace
{

cudnnHandle_t handle; /* NULL: graphs are planned for `properties`, and not run */
std::shared_ptr<fe::DeviceProperties> properties;

enum { LINE_BYTES = 400 };

enum uid : int64_t { Q = 1, KEYS, VALUES, O, LSE, D_O, DQ, DK, DV };

/* The beginning, in one line, of what may be pages: cuDNN tells its whole way to an error. */
std::string begin_of(const std::string &text)
{
    std::string line;
    for (char c : text) {
        if (line.size() >= LINE_BYTES) break;
        line += c == '\n' ? ' ' : c;
    }
    return line;
}

std::string name_of(const ls_cudnn_shape &s)
{
    std::ostringstream text;
    text << "cuDNN attention " << (s.backward ? "backward" : "forward") << ", N " << s.N << ", M "
         << s.M << ", H " << s.H << ", G " << s.G << ", K " << s.K << (s.causal ? ", causal" : "");
    if (s.window > 0) text << ", window " << s.window;
    return text.str();
}

ls_status fail(ls_status status, const ls_cudnn_shape &s, const std::string &why)
{
    return LS_FAIL(status, "%s: %s", name_of(s).c_str(), begin_of(why).c_str());
}

/* The status of a step of the frontend's. */
ls_status check(fe::error_t error, const ls_cudnn_shape &s, const char *what)
{
    if (error.is_good()) return LS_OK;
    const bool unsupported = error.get_code() == fe::error_code_t::GRAPH_NOT_SUPPORTED ||
                             error.get_code() == fe::error_code_t::HEURISTIC_QUERY_FAILED;
    return fail(unsupported ? LS_ERR_UNSUPPORTED : LS_ERR_DEVICE, s,
                std::string(what) + ": " + error.get_message());
}

/* ---- graphs --------------------------------------------------------------------------------- */

/* [rows, heads, K] */
Tensor_attributes heads_of(const char *name, uid id, int64_t rows, int64_t heads, int64_t K)
{
    return Tensor_attributes()
        .set_name(name)
        .set_uid(id)
        .set_dim({1, heads, rows, K})
        .set_stride({rows * heads * K, K, heads * K, 1})
        .set_data_type(fe::DataType_t::BFLOAT16);
}

/* [H, N] */
Tensor_attributes lse_of(const ls_cudnn_shape &s)
{
    return Tensor_attributes()
        .set_name("lse")
        .set_uid(LSE)
        .set_dim({1, s.H, s.N, 1})
        .set_stride({s.H * s.N, s.N, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
}

/* An output of the graph, as `like` has it. */
void place_output(const tensor &output, const Tensor_attributes &like)
{
    output->set_output(true)
        .set_name(like.get_name())
        .set_uid(like.get_uid())
        .set_dim(like.get_dim())
        .set_stride(like.get_stride())
        .set_data_type(like.get_data_type());
}

template <typename A> void set_mask(const ls_cudnn_shape &s, A *attributes)
{
    attributes->set_attn_scale(s.scale);
    if (s.causal)
        attributes->set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
            .set_diagonal_band_right_bound(0);
    if (s.window > 0) attributes->set_diagonal_band_left_bound(static_cast<int>(s.window));
}

void describe_forward(const ls_cudnn_shape &s, fe::graph::Graph *graph)
{
    auto attributes = fe::graph::SDPA_attributes().set_name("forward").set_generate_stats(true);
    set_mask(s, &attributes);
    const auto outputs =
        graph->sdpa(graph->tensor(heads_of("q", Q, s.N, s.H, s.K)),
                    graph->tensor(heads_of("k", KEYS, s.M, s.G, s.K)),
                    graph->tensor(heads_of("v", VALUES, s.M, s.G, s.K)), attributes);
    place_output(outputs[0], heads_of("o", O, s.N, s.H, s.K));
    place_output(outputs[1], lse_of(s));
}

void describe_backward(const ls_cudnn_shape &s, fe::graph::Graph *graph)
{
    auto attributes = fe::graph::SDPA_backward_attributes().set_name("backward");
    set_mask(s, &attributes);
    const auto outputs = graph->sdpa_backward(graph->tensor(heads_of("q", Q, s.N, s.H, s.K)),
                                              graph->tensor(heads_of("k", KEYS, s.M, s.G, s.K)),
                                              graph->tensor(heads_of("v", VALUES, s.M, s.G, s.K)),
                                              graph->tensor(heads_of("o", O, s.N, s.H, s.K)),
                                              graph->tensor(heads_of("d_o", D_O, s.N, s.H, s.K)),
                                              graph->tensor(lse_of(s)), attributes);
    place_output(outputs[0], heads_of("dq", DQ, s.N, s.H, s.K));
    place_output(outputs[1], heads_of("dk", DK, s.M, s.G, s.K));
    place_output(outputs[2], heads_of("dv", DV, s.M, s.G, s.K));
}

void describe(const ls_cudnn_shape &s, fe::graph::Graph *graph)
{
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (handle == nullptr) graph->set_sm_version(90).set_device_properties(properties);
    if (s.backward)
        describe_backward(s, graph);
    else
        describe_forward(s, graph);
}

} // namespace

struct ls_cudnn_graph {
    ls_cudnn_shape shape;
    fe::graph::Graph graph;
    uint64_t bytes;
    std::string engine;
};

namespace
{

/* "eng6_k24=26, eng7_k24=26": what the heuristic gave. */
std::string list_engines(const fe::graph::Graph &graph)
{
    std::string list;
    for (int64_t i = 0; i < graph.get_execution_plan_count(); i++) {
        std::string name;
        if (graph.get_plan_name_at_index(i, name).is_bad()) name = "?";
        list += (i > 0 ? ", " : "") + name;
    }
    return list.empty() ? "none" : list;
}

ls_status build(uint64_t workspace_max, ls_cudnn_graph *g)
{
    const ls_cudnn_shape &s = g->shape;
    int64_t bytes = 0;

    describe(s, &g->graph);
    LS_TRY(check(g->graph.validate(), s, "description"));
    LS_TRY(check(handle != nullptr ? g->graph.build_operation_graph(handle)
                                   : g->graph.build_operation_graph(),
                 s, "operations"));
    LS_TRY(check(g->graph.create_execution_plans({fe::HeurMode_t::A}), s, "engines"));
    g->graph.deselect_workspace_greater_than(static_cast<int64_t>(workspace_max));
    fe::error_t supported = g->graph.check_support();
    fe::error_t built = supported.is_good()
                            ? g->graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE)
                            : supported;
    if (built.is_bad())
        return fail(LS_ERR_UNSUPPORTED, s,
                    "no engine within " + std::to_string(workspace_max) +
                        " bytes of workspace (asked: " + list_engines(g->graph) +
                        "); determinism: exact does without cuDNN; " + built.get_message());
    LS_TRY(check(g->graph.get_workspace_size(bytes), s, "workspace"));
    LS_TRY(check(g->graph.get_plan_name(g->engine), s, "engine"));
    g->bytes = static_cast<uint64_t>(bytes);
    if (g->bytes > workspace_max)
        return fail(LS_ERR_UNSUPPORTED, s,
                    g->engine + " wants " + std::to_string(g->bytes) + " bytes of workspace, " +
                        std::to_string(workspace_max) +
                        " are reserved; determinism: exact does without cuDNN");
    return LS_OK;
}

/* The frontend's own look-up of the runtime warns where there are several: name ours. */
ls_status load_runtime()
{
    const std::string name = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);
    if (dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "cuDNN needs the CUDA runtime: %s; install it, or add its folder to "
                       "LD_LIBRARY_PATH",
                       dlerror());
    (void)setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", name.c_str(), 0);
    return LS_OK;
}

ls_status load_library()
{
    if (fe::cudnn_dlhandle != nullptr) return LS_OK;
    fe::cudnn_dlhandle = dlopen(CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (fe::cudnn_dlhandle == nullptr)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "%s; install cuDNN, or add its folder to LD_LIBRARY_PATH", dlerror());
    return LS_OK;
}

template <typename F> ls_status without_exceptions(const char *what, F call)
{
    try {
        return call();
    } catch (const std::bad_alloc &) {
        return LS_FAIL(LS_ERR_NO_MEMORY, "%s", what);
    } catch (const std::exception &e) {
        return LS_FAIL(LS_ERR_DEVICE, "%s: %s", what, begin_of(e.what()).c_str());
    }
}

} // namespace

extern "C" {

ls_status ls_cudnn_open(void)
{
    return without_exceptions("cuDNN", [] {
        if (handle != nullptr) return LS_OK;
        LS_TRY(load_library());
        LS_TRY(load_runtime());
        const cudnnStatus_t status = fe::detail::create_handle(&handle);
        if (status == CUDNN_STATUS_SUCCESS) return LS_OK;
        handle = nullptr;
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s does not start: %s", CUDNN_LIBRARY,
                       fe::detail::get_error_string(status));
    });
}

ls_status ls_cudnn_open_planner(const char *device_json)
{
    return without_exceptions("cuDNN", [=] {
        const std::string text = device_json;
        LS_TRY(load_library());
        properties = std::make_shared<fe::DeviceProperties>();
        fe::error_t error = properties->deserialize(std::vector<uint8_t>(text.begin(), text.end()));
        if (error.is_good()) return LS_OK;
        return LS_FAIL(LS_ERR_UNSUPPORTED, "properties of the device: %s",
                       begin_of(error.get_message()).c_str());
    });
}

int32_t ls_cudnn_version(void)
{
    return static_cast<int32_t>(fe::detail::get_backend_version());
}

ls_status ls_cudnn_graph_build(const ls_cudnn_shape *shape, uint64_t workspace_max,
                               ls_cudnn_graph **graph)
{
    return without_exceptions("cuDNN attention", [=] {
        auto made = std::make_unique<ls_cudnn_graph>();
        made->shape = *shape;
        LS_TRY(build(workspace_max, made.get()));
        *graph = made.release();
        return LS_OK;
    });
}

void ls_cudnn_graph_free(ls_cudnn_graph *graph)
{
    delete graph;
}

uint64_t ls_cudnn_graph_bytes(const ls_cudnn_graph *graph)
{
    return graph->bytes;
}

const char *ls_cudnn_graph_engine(const ls_cudnn_graph *graph)
{
    return graph->engine.c_str();
}

ls_status ls_cudnn_graph_run(ls_cudnn_graph *graph, void *stream, const ls_cudnn_operands *x)
{
    return without_exceptions("cuDNN attention", [=] {
        const ls_cudnn_shape &s = graph->shape;
        const auto at = [](const void *operand) { return const_cast<void *>(operand); };
        std::unordered_map<int64_t, void *> pack = {
            {Q, at(x->q)}, {KEYS, at(x->k)}, {VALUES, at(x->v)}, {O, x->o}, {LSE, x->lse}};
        if (s.backward) {
            pack[D_O] = at(x->d_o);
            pack[DQ] = x->dq;
            pack[DK] = x->dk;
            pack[DV] = x->dv;
        }
        const cudnnStatus_t status =
            fe::detail::set_stream(handle, static_cast<cudaStream_t>(stream));
        if (status != CUDNN_STATUS_SUCCESS)
            return fail(LS_ERR_DEVICE, s, fe::detail::get_error_string(status));
        return check(graph->graph.execute(handle, pack, x->workspace), s, "run");
    });
}

} /* extern "C" */
