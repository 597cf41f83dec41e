/* attention_cudnn -- sdpa.h by cuDNN's graph interface. cudnn-frontend, a library of headers, builds the
 * graph of attention and its gradient.
 *
 * The library is opened at run time: the frontend's calls go through a table of its functions. The
 * frontend uses NVRTC for kernels that are not needed here; its calls of NVRTC are defined to fail. The
 * frontend reports by error objects and, in a few places, by exceptions; no exception leaves this
 * file. */
#include "sdpa.h"
#include "libraries.h"
#include <cudnn.h>
#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>

#define CUDNN_FUNCTIONS(X)                                                                                   \
    X(cudnnGetVersion) X(cudnnGetErrorString) X(cudnnGetLastErrorString) X(cudnnCreate) X(cudnnDestroy)      \
    X(cudnnSetStream) X(cudnnGetStream) X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor)     \
    X(cudnnBackendFinalize) X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute) X(cudnnBackendExecute)
#define X(f) decltype(f) *f##_;
static struct { CUDNN_FUNCTIONS(X) } api;
#undef X

#define cudnnGetVersion               api.cudnnGetVersion_
#define cudnnGetErrorString           api.cudnnGetErrorString_
#define cudnnGetLastErrorString       api.cudnnGetLastErrorString_
#define cudnnGetStream                api.cudnnGetStream_
#define cudnnBackendCreateDescriptor  api.cudnnBackendCreateDescriptor_
#define cudnnBackendDestroyDescriptor api.cudnnBackendDestroyDescriptor_
#define cudnnBackendFinalize          api.cudnnBackendFinalize_
#define cudnnBackendSetAttribute      api.cudnnBackendSetAttribute_
#define cudnnBackendGetAttribute      api.cudnnBackendGetAttribute_
#define cudnnBackendExecute           api.cudnnBackendExecute_
#define cudnnGetExecutionPlanWorkspaceSize(...) CUDNN_STATUS_NOT_SUPPORTED /* for plans of several shapes */
#define nvrtcCreateProgram(...)       NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcDestroyProgram(...)      NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcCompileProgram(...)      NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcGetProgramLogSize(...)   NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcGetProgramLog(...)       NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcGetCUBINSize(...)        NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcGetCUBIN(...)            NVRTC_ERROR_INTERNAL_ERROR
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace fe = cudnn_frontend;

struct Sdpa {
    cudnnHandle_t handle;                              /* NULL: opened by sdpa_open_absent */
    std::shared_ptr<fe::DeviceProperties> properties;  /* the GPU of sdpa_open_absent; else empty */
    int sm;                                            /* compute capability */
    char name[32];                                     /* see sdpa_name */
};

struct SdpaPlan {
    fe::graph::Graph graph;
    std::unordered_map<int64_t, void *> at;            /* matrix i, and the statistics as SDPA_MATS */
    int mats;                                          /* number of matrices */
    int64_t bytes;                                     /* of workspace */
};

static int refuse(SdpaWhy *why, const char *text)
{
    snprintf(why->text, sizeof why->text, "%s", text);
    for (char *p = why->text; *p; p++)
        if (*p == '\n')
            *p = ' ';
    return 0;
}
static int refuse(SdpaWhy *why, fe::error_t e) { return refuse(why, e.get_message().c_str()); }

/* ---- the library ---- */

static int open_library(SdpaWhy *why)
{
    static const char name[] = "libcudnn.so.9";
    void *l = api.cudnnCreate_ ? NULL : library_find(name, why->text, sizeof why->text);
    if (api.cudnnCreate_)
        return 1;
    if (!l)
        return 0;
#define X(f) \
    if (!(api.f##_ = reinterpret_cast<decltype(api.f##_)>(library_symbol(l, #f)))) { \
        api.cudnnCreate_ = NULL; \
        return refuse(why, "it is too old: it has no " #f); \
    }
    CUDNN_FUNCTIONS(X)
#undef X
    return 1;
}

static Sdpa *library_open(SdpaWhy *why)
{
    if (!open_library(why))
        return NULL;
    Sdpa *s = new Sdpa();
    size_t v = api.cudnnGetVersion_();
    snprintf(s->name, sizeof s->name, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return s;
}

int sdpa_built(void) { return 1; }
const char *sdpa_name(const Sdpa *s) { return s->name; }

Sdpa *sdpa_open(cudaStream_t stream, SdpaWhy *why)
{
    int device = 0, major = 0, minor = 0;
    Sdpa *s = library_open(why);
    if (!s)
        return NULL;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    s->sm = 10 * major + minor;
    cudnnStatus_t e = api.cudnnCreate_(&s->handle);
    if (e == CUDNN_STATUS_SUCCESS)
        e = api.cudnnSetStream_(s->handle, stream);
    if (e != CUDNN_STATUS_SUCCESS) {
        snprintf(why->text, sizeof why->text, "%s cannot be used: %.160s", s->name,
                 api.cudnnGetErrorString_(e));
        sdpa_close(s);
        return NULL;
    }
    return s;
}

Sdpa *sdpa_open_absent(int sm, const char *properties, SdpaWhy *why)
{
    Sdpa *s = library_open(why);
    if (!s)
        return NULL;
    s->sm = sm;
    s->properties = std::make_shared<fe::DeviceProperties>();
    fe::error_t e =
        s->properties->deserialize(std::vector<uint8_t>(properties, properties + strlen(properties)));
    if (e.is_good())
        return s;
    refuse(why, e);
    sdpa_close(s);
    return NULL;
}

void sdpa_close(Sdpa *s)
{
    if (s && s->handle)
        api.cudnnDestroy_(s->handle);
    delete s;
}

/* ---- graphs ---- */

typedef std::shared_ptr<fe::graph::Tensor_attributes> Tensor;

static int heads_of(const SdpaShape *a, int i)
{
    return i == SDPA_K || i == SDPA_V || i == SDPA_DK || i == SDPA_DV ? a->kv_heads : a->heads;
}

/* Describes matrix i as [batch, heads, seq, dim]: the heads of a row lie side by side. */
static fe::graph::Tensor_attributes &describe(fe::graph::Tensor_attributes &t, const SdpaShape *a, int i)
{
    return t.set_uid(i).set_dim({a->batch, heads_of(a, i), a->seq, a->dim})
        .set_stride({a->seq * a->ld[i], a->dim, a->ld[i], 1});
}
static Tensor input(SdpaPlan *p, const SdpaShape *a, int i)
{
    fe::graph::Tensor_attributes t;
    return p->graph.tensor(describe(t, a, i));
}
static fe::graph::Tensor_attributes &describe_statistics(fe::graph::Tensor_attributes &t, const SdpaShape *a)
{
    return t.set_uid(SDPA_MATS).set_data_type(fe::DataType_t::FLOAT).set_dim({a->batch, a->heads, a->seq, 1})
        .set_stride({a->heads * a->seq, a->seq, 1, 1});
}

/* Key j is seen by query i where i - window < j <= i. */
template <class Attributes> static void set_mask(Attributes &x, const SdpaShape *a)
{
    x.set_attn_scale((float)a->scale);
    x.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    if (a->window)
        x.set_diagonal_band_left_bound(a->window);
}

static void add_forward(SdpaPlan *p, const SdpaShape *a)
{
    auto x = fe::graph::SDPA_attributes().set_name("attention_fwd").set_generate_stats(true);
    set_mask(x, a);
    auto out = p->graph.sdpa(input(p, a, SDPA_Q), input(p, a, SDPA_K), input(p, a, SDPA_V), x);
    describe(*out[0], a, SDPA_O).set_output(true);
    describe_statistics(*out[1], a).set_output(true);
}

static void add_backward(SdpaPlan *p, const SdpaShape *a)
{
    fe::graph::Tensor_attributes t;
    auto x = fe::graph::SDPA_backward_attributes().set_name("attention_bwd")
                 .set_deterministic_algorithm(!a->any_order);
    set_mask(x, a);
    Tensor statistics = p->graph.tensor(describe_statistics(t, a));
    auto out = p->graph.sdpa_backward(input(p, a, SDPA_Q), input(p, a, SDPA_K), input(p, a, SDPA_V),
                                      input(p, a, SDPA_O), input(p, a, SDPA_DOUT), statistics, x);
    for (int i = 0; i < 3; i++)
        describe(*out[(size_t)i], a, SDPA_DQ + i).set_output(true);
}

/* Makes a graph; each step may refuse. Without a GPU the steps that compile are left out. */
static fe::error_t make(Sdpa *s, SdpaPlan *p, const SdpaShape *a, size_t bytes)
{
    fe::DataType_t type = a->type == BF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
    p->graph.set_io_data_type(type).set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    p->graph.set_sm_version(s->sm);
    if (s->properties)
        p->graph.set_device_properties(s->properties);
    a->backward ? add_backward(p, a) : add_forward(p, a);
    fe::error_t e = p->graph.validate();
    if (e.is_good())
        e = s->handle ? p->graph.build_operation_graph(s->handle) : p->graph.build_operation_graph();
    if (e.is_good())
        e = p->graph.create_execution_plans({fe::HeurMode_t::A});
    if (e.is_good())
        p->graph.deselect_workspace_greater_than((int64_t)bytes);
    if (e.is_good())
        e = p->graph.check_support();
    if (e.is_good() && s->handle)
        e = p->graph.build_plans();
    if (e.is_good() && s->handle)
        e = p->graph.get_workspace_size(p->bytes);
    return e;
}

SdpaPlan *sdpa_plan(Sdpa *s, const SdpaShape *shape, size_t bytes, SdpaWhy *why)
{
    SdpaPlan *p = new SdpaPlan();
    p->mats = shape->backward ? SDPA_MATS : SDPA_O + 1;
    int made = 0;
    try {
        fe::error_t e = make(s, p, shape, bytes);
        made = e.is_good() || refuse(why, e);
    } catch (const std::exception &x) {
        refuse(why, x.what());
    }
    if (made && p->bytes > (int64_t)bytes) {
        snprintf(why->text, sizeof why->text, "it takes %lld bytes of workspace, and there are %zu",
                 (long long)p->bytes, bytes);
        made = 0;
    }
    if (made)
        return p;
    sdpa_plan_close(p);
    return NULL;
}

void sdpa_plan_close(SdpaPlan *p) { delete p; }
size_t sdpa_plan_bytes(const SdpaPlan *p) { return (size_t)p->bytes; }

void sdpa_run(Sdpa *s, SdpaPlan *p, void *const mat[SDPA_MATS], float *statistics, void *workspace)
{
    SdpaWhy why = {"an exception"};
    int done = 0;
    try {
        for (int i = 0; i < p->mats; i++)
            p->at[i] = mat[i];
        p->at[SDPA_MATS] = statistics;
        fe::error_t e = p->graph.execute(s->handle, p->at, workspace);
        done = e.is_good() || refuse(&why, e);
    } catch (const std::exception &x) {
        refuse(&why, x.what());
    }
    if (!done)
        die(EXIT_RESOURCE, "cudnn", "attention failed: %s; change: attention_backend: flash, or see what "
            "nvidia-smi and dmesg say of the GPU", why.text);
}
