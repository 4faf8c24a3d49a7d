// SPDX-License-Identifier: Apache-2.0
// gpu_steps.cu - the steps as they are, on one GPU: what the single source costs.
//
// All ranks are streams of this process, one CUDA graph of 50 exchanges per rank; the expert is the
// identity. Prints one JSON object: p50 round trip in microseconds per layout, variant and T. Every
// collected value is checked after the clock stops (rows are small integers, so sums are exact).

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "afd/afd.h"
#include "steps/attention_collect.h"
#include "steps/attention_dispatch.h"
#include "steps/ffn_receive.h"
#include "steps/ffn_reply.h"

extern "C" {
#include "plan.h"
}

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));        \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

static const int EXCHANGES = 50;
static const int REPEATS = 10;

static __device__ struct afd_lane lane_here(struct afd_exec *exec)
{
    struct afd_lane lane;
    lane.block = blockIdx.x;
    lane.blocks = gridDim.x;
    lane.thread = threadIdx.x;
    lane.threads = blockDim.x;
    lane.exec = exec;
    return lane;
}

static __global__ void dispatch_kernel(struct afd_exec *e,
                                       const __grid_constant__ struct afd_dispatch_args a)
{
    afd_step_attention_dispatch(lane_here(e), &a);
}
static __global__ void receive_kernel(struct afd_exec *e,
                                      const __grid_constant__ struct afd_receive_args a)
{
    afd_step_ffn_receive(lane_here(e), &a);
}
static __global__ void reply_kernel(struct afd_exec *e,
                                    const __grid_constant__ struct afd_reply_args a)
{
    afd_step_ffn_reply(lane_here(e), &a);
}
static __global__ void collect_kernel(struct afd_exec *e,
                                      const __grid_constant__ struct afd_collect_args a)
{
    afd_step_attention_collect(lane_here(e), &a);
}

struct rank {
    struct afd_plan plan;
    uint32_t number; // world rank
    uint8_t *window;
    uint8_t *memory;
    struct afd_exec *exec;
    struct afd_trouble *trouble;
    cudaStream_t stream;
    cudaGraphExec_t graph;
    cudaEvent_t begin, end;
    uint16_t *x, *y;
    int64_t *ids;
    std::vector<int64_t> host_ids;
    std::vector<uint16_t> host_x;
};

static void *device_alloc(size_t bytes)
{
    void *p;
    CHECK(cudaMalloc(&p, bytes + 256));
    CHECK(cudaMemset(p, 0, bytes + 256));
    return p;
}

template <typename T> static T *to_device(const std::vector<T> &v)
{
    T *p = (T *)device_alloc(v.size() * sizeof(T));
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <typename T> static T *priv(const rank &r, enum afd_private kind)
{
    return (T *)(void *)(r.memory + r.plan.private_offset[kind]);
}

struct setup {
    uint32_t n, f, hidden, experts, topk, tokens, words, blocks, threads;
};

static uint16_t bf16_of_int(int v)
{
    float value = (float)v;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)(bits >> 16);
}

static void fill_exec(rank &r)
{
    struct afd_exec e;
    memset(&e, 0, sizeof(e));
    r.trouble = (struct afd_trouble *)device_alloc(sizeof(struct afd_trouble));
    e.trouble = r.trouble;
    e.abort_word = (const uint32_t *)device_alloc(64);
    e.deadline_ns = 2000000000ull;
    r.exec = (struct afd_exec *)device_alloc(sizeof(e));
    CHECK(cudaMemcpy(r.exec, &e, sizeof(e), cudaMemcpyHostToDevice));
}

static void make_input(rank &r, const setup &s, uint32_t index)
{
    uint32_t seed = 12345 + index * 77;
    for (uint32_t t = 0; t < s.tokens; t++) {
        std::vector<int64_t> used;
        while (used.size() < s.topk) {
            seed = seed * 1664525u + 1013904223u;
            int64_t id = (seed >> 8) % s.experts;
            if (std::find(used.begin(), used.end(), id) == used.end())
                used.push_back(id);
        }
        r.host_ids.insert(r.host_ids.end(), used.begin(), used.end());
        for (uint32_t h = 0; h < s.hidden; h++)
            r.host_x.push_back(bf16_of_int((int)((t * 31 + h * 7 + index) % 15) - 7));
    }
    r.ids = to_device(r.host_ids);
    r.x = to_device(r.host_x);
    r.y = (uint16_t *)device_alloc((size_t)s.tokens * s.hidden * 2);
}

// What every rank's kernels need to know about the others, in device memory.
struct tables {
    struct afd_shape *shape;
    struct afd_layout *ffn_layout, *attention_layout;
    uint8_t **ffn_window, **source_window;
    uint32_t *ffn_rank, *source_rank;
};

// Argument structs as the library's exchange files fill them, with device pointers.
static struct afd_dispatch_args dispatch_args(const rank &r, const setup &s, const tables &t)
{
    struct afd_dispatch_args d;
    memset(&d, 0, sizeof(d));
    d.shape = t.shape;
    d.ffn_layout = t.ffn_layout;
    d.ffn_window = t.ffn_window;
    d.placement.ffn = priv<uint16_t>(r, AFD_PRIVATE_EXPERT_FFN);
    d.placement.local = priv<uint16_t>(r, AFD_PRIVATE_EXPERT_LOCAL);
    d.placement.experts = s.experts;
    d.placement.topk = s.topk;
    d.state = priv<struct afd_stage_state>(r, AFD_PRIVATE_STATE);
    d.hits = priv<uint64_t>(r, AFD_PRIVATE_HITS);
    d.reply_rows = priv<uint32_t>(r, AFD_PRIVATE_REPLY_ROWS);
    d.sent = priv<uint32_t>(r, AFD_PRIVATE_SENT);
    d.credit_sent = priv<uint64_t>(r, AFD_PRIVATE_CREDIT_SENT);
    d.count_out = priv<uint32_t>(r, AFD_PRIVATE_COUNT);
    d.x = (const uint8_t *)r.x;
    d.x_stride = s.hidden * 2ull;
    d.ids.ids = r.ids;
    d.ids.wide = 1;
    d.tokens = s.tokens;
    d.source = r.plan.index;
    d.rank = r.number;
    d.rows = !s.words;
    d.reply_words = s.words;
    return d;
}

static struct afd_collect_args collect_args(const rank &r, const setup &s, const tables &t)
{
    struct afd_collect_args c;
    memset(&c, 0, sizeof(c));
    c.shape = t.shape;
    c.layout = t.attention_layout;
    c.window = r.window;
    c.ffn_rank = t.ffn_rank;
    c.state = priv<struct afd_stage_state>(r, AFD_PRIVATE_STATE);
    c.hits = priv<uint64_t>(r, AFD_PRIVATE_HITS);
    c.reply_rows = priv<uint32_t>(r, AFD_PRIVATE_REPLY_ROWS);
    c.count = priv<uint32_t>(r, AFD_PRIVATE_COUNT);
    c.credit_base = priv<uint64_t>(r, AFD_PRIVATE_CREDIT_BASE);
    c.terms = priv<const uint16_t *>(r, AFD_PRIVATE_TERMS);
    c.peers = priv<struct afd_collect_peer>(r, AFD_PRIVATE_REPLY_PEERS);
    c.rows = (uint8_t *)r.y;
    c.rows_stride = s.hidden * 2ull;
    c.reply_words = s.words;
    return c;
}

static struct afd_receive_args receive_args(const rank &r, const setup &s, const tables &t)
{
    uint32_t *bins = priv<uint32_t>(r, AFD_PRIVATE_HISTOGRAM);
    uint64_t each = (uint64_t)AFD_BLOCKS_MAX * r.plan.local_experts;
    struct afd_receive_args a;
    memset(&a, 0, sizeof(a));
    a.shape = t.shape;
    a.layout = t.ffn_layout;
    a.window = r.window;
    a.source_rank = t.source_rank;
    a.state = priv<struct afd_stage_state>(r, AFD_PRIVATE_STATE);
    a.rank = r.number;
    a.local_experts = r.plan.local_experts;
    a.alignment = 1;
    a.meta = priv<struct afd_source_meta>(r, AFD_PRIVATE_META);
    a.histogram = bins;
    a.total = bins + each;
    a.begin = bins + 2 * each;
    a.cursor = bins + 3 * each;
    a.routes = priv<uint16_t>(r, AFD_PRIVATE_ROUTES);
    a.credit_base = priv<uint64_t>(r, AFD_PRIVATE_CREDIT_BASE);
    a.token_rows = priv<uint32_t>(r, AFD_PRIVATE_TOKEN_ROWS);
    a.source_out = priv<struct afd_source_meta>(r, AFD_PRIVATE_SOURCES);
    a.counts = priv<uint32_t>(r, AFD_PRIVATE_COUNTS);
    a.offsets = priv<uint32_t>(r, AFD_PRIVATE_OFFSETS);
    a.slots = priv<uint32_t>(r, AFD_PRIVATE_SLOTS);
    a.weights = priv<float>(r, AFD_PRIVATE_WEIGHTS);
    a.expert_totals = priv<uint64_t>(r, AFD_PRIVATE_TOTALS);
    a.token_count = priv<uint64_t>(r, AFD_PRIVATE_TOKEN_COUNT);
    a.rows = priv<uint8_t>(r, AFD_PRIVATE_ROWS);
    a.rows_stride = s.hidden * 2ull;
    a.rows_capacity = r.plan.batch_rows;
    return a;
}

static struct afd_reply_args reply_args(const rank &r, const setup &s, const tables &t)
{
    struct afd_reply_args p;
    memset(&p, 0, sizeof(p));
    p.shape = t.shape;
    p.attention_layout = t.attention_layout;
    p.source_window = t.source_window;
    p.state = priv<struct afd_stage_state>(r, AFD_PRIVATE_STATE);
    p.source = priv<struct afd_source_meta>(r, AFD_PRIVATE_SOURCES);
    p.routes = priv<uint16_t>(r, AFD_PRIVATE_ROUTES);
    p.token_rows = priv<uint32_t>(r, AFD_PRIVATE_TOKEN_ROWS);
    p.rows = priv<uint8_t>(r, AFD_PRIVATE_ROWS);
    p.rows_stride = s.hidden * 2ull;
    p.terms = priv<const uint16_t *>(r, AFD_PRIVATE_TERMS);
    p.term_weights = priv<float>(r, AFD_PRIVATE_TERM_WEIGHTS);
    p.credit_sent = priv<uint64_t>(r, AFD_PRIVATE_CREDIT_SENT);
    p.ffn = r.plan.index;
    return p;
}

static tables make_tables(const std::vector<rank> &ranks)
{
    std::vector<uint8_t *> ffn_windows, source_windows;
    std::vector<uint32_t> ffn_ranks, source_ranks;
    const struct afd_plan &plan = ranks[0].plan;
    tables t;
    for (const rank &r : ranks) {
        bool is_ffn = r.plan.role == AFD_ROLE_FFN;
        (is_ffn ? ffn_windows : source_windows).push_back(r.window);
        (is_ffn ? ffn_ranks : source_ranks).push_back(r.number);
    }
    t.shape = to_device(std::vector<struct afd_shape>(1, plan.shape));
    t.ffn_layout = to_device(std::vector<struct afd_layout>(1, plan.ffn_layout));
    t.attention_layout = to_device(std::vector<struct afd_layout>(1, plan.attention_layout));
    t.ffn_window = to_device(ffn_windows);
    t.source_window = to_device(source_windows);
    t.ffn_rank = to_device(ffn_ranks);
    t.source_rank = to_device(source_ranks);
    return t;
}

// One graph of EXCHANGES exchanges per rank.
static void capture(std::vector<rank> &ranks, const setup &s)
{
    tables t = make_tables(ranks);
    for (rank &r : ranks) {
        cudaGraph_t graph;
        CHECK(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal));
        for (int n = 0; n < EXCHANGES; n++) {
            if (r.plan.role == AFD_ROLE_ATTENTION) {
                dispatch_kernel<<<s.blocks, s.threads, 0, r.stream>>>(r.exec,
                                                                      dispatch_args(r, s, t));
                collect_kernel<<<s.blocks, s.threads, 0, r.stream>>>(r.exec, collect_args(r, s, t));
            } else {
                receive_kernel<<<s.blocks, s.threads, 0, r.stream>>>(r.exec, receive_args(r, s, t));
                reply_kernel<<<s.blocks, s.threads, 0, r.stream>>>(r.exec, reply_args(r, s, t));
            }
        }
        CHECK(cudaStreamEndCapture(r.stream, &graph));
        CHECK(cudaGraphInstantiate(&r.graph, graph, 0));
        CHECK(cudaGraphDestroy(graph));
    }
}

static long check(const std::vector<rank> &ranks, const setup &s)
{
    long wrong = 0;
    for (const rank &r : ranks) {
        struct afd_trouble t;
        CHECK(cudaMemcpy(&t, r.trouble, sizeof(t), cudaMemcpyDeviceToHost));
        if (t.taken != 0) {
            fprintf(stderr, "trouble %d: rank %u kind %u block %u expected %llu seen %llu\n",
                    t.code, t.rank, t.kind, t.block, (unsigned long long)t.expected,
                    (unsigned long long)t.seen);
            return -1;
        }
        if (r.plan.role != AFD_ROLE_ATTENTION)
            continue;
        std::vector<uint16_t> y(r.host_x.size());
        CHECK(cudaMemcpy(y.data(), r.y, y.size() * 2, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < y.size(); i++) {
            int v = (int)((i / s.hidden * 31 + i % s.hidden * 7 + r.plan.index) % 15) - 7;
            uint16_t want = v == 0 ? 0 : bf16_of_int(v * (int)s.topk);
            wrong += y[i] != want;
        }
    }
    return wrong;
}

static struct afd_buffer_config configure(const setup &s)
{
    struct afd_buffer_config config;
    memset(&config, 0, sizeof(config));
    config.size = sizeof(config);
    config.capacity = 2048;
    config.hidden = s.hidden;
    config.experts = s.experts;
    config.topk = s.topk;
    config.payload = AFD_PAYLOAD_BF16;
    config.reply = AFD_REPLY_BF16;
    config.receive = AFD_RECEIVE_EXPANDED;
    config.stages = 1;
    config.alignment = 1;
    config.words_tokens = 128;
    config.first_epoch = 1;
    return config;
}

static void fill_placement(rank &r, const setup &s)
{
    std::vector<uint16_t> ffn, local;
    std::vector<uint32_t> held(s.f, 0);
    for (uint32_t e = 0; e < s.experts; e++) {
        uint32_t owner = afd_placement_even(e, s.experts, s.f);
        ffn.push_back((uint16_t)owner);
        local.push_back((uint16_t)held[owner]++);
    }
    CHECK(cudaMemcpy(priv<uint16_t>(r, AFD_PRIVATE_EXPERT_FFN), ffn.data(), s.experts * 2,
                     cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(priv<uint16_t>(r, AFD_PRIVATE_EXPERT_LOCAL), local.data(), s.experts * 2,
                     cudaMemcpyHostToDevice));
}

static std::vector<rank> make_ranks(const setup &s)
{
    struct afd_group_config group;
    struct afd_buffer_config config = configure(s);
    std::vector<uint8_t> roles;
    std::vector<rank> ranks(s.n + s.f);
    for (uint32_t i = 0; i < s.n + s.f; i++)
        roles.push_back(i < s.f ? AFD_ROLE_FFN : AFD_ROLE_ATTENTION);
    memset(&group, 0, sizeof(group));
    group.size = sizeof(group);
    group.world = s.n + s.f;
    group.roles = roles.data();
    for (uint32_t i = 0; i < ranks.size(); i++) {
        rank &r = ranks[i];
        r.number = i;
        if (afd_plan_make(&group, &config, i, &r.plan) != 0) {
            fprintf(stderr, "plan: %s\n", afd_last_error());
            exit(3);
        }
        r.window = (uint8_t *)device_alloc(r.plan.role == AFD_ROLE_FFN
                                               ? r.plan.ffn_layout.window_bytes
                                               : r.plan.attention_layout.window_bytes);
        r.memory = (uint8_t *)device_alloc(r.plan.private_bytes);
        fill_exec(r);
        CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreate(&r.begin));
        CHECK(cudaEventCreate(&r.end));
        if (r.plan.role == AFD_ROLE_ATTENTION) {
            fill_placement(r, s);
            make_input(r, s, r.plan.index);
        }
    }
    return ranks;
}

// Median over launches of the slowest Attention rank's time per exchange.
static double measure(std::vector<rank> &ranks)
{
    std::vector<double> times;
    for (int repeat = 0; repeat < REPEATS + 2; repeat++) {
        float worst = 0;
        for (rank &r : ranks) {
            CHECK(cudaEventRecord(r.begin, r.stream));
            CHECK(cudaGraphLaunch(r.graph, r.stream));
            CHECK(cudaEventRecord(r.end, r.stream));
        }
        for (rank &r : ranks)
            CHECK(cudaStreamSynchronize(r.stream));
        for (rank &r : ranks) {
            float ms;
            CHECK(cudaEventElapsedTime(&ms, r.begin, r.end));
            if (r.plan.role == AFD_ROLE_ATTENTION && ms > worst)
                worst = ms;
        }
        if (repeat >= 2)
            times.push_back(worst * 1000.0 / EXCHANGES);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static void run(const setup &s, bool *first)
{
    std::vector<rank> ranks = make_ranks(s);
    double us;
    long wrong;
    capture(ranks, s);
    CHECK(cudaDeviceSynchronize());
    us = measure(ranks);
    wrong = check(ranks, s);
    printf("%s\n  {\"layout\": \"%uA%uF\", \"hidden\": %u, \"tokens\": %u, \"variant\": \"%s\", "
           "\"blocks\": %u, \"threads\": %u, \"us\": %.2f, \"wrong\": %ld}",
           *first ? "" : ",", s.n, s.f, s.hidden, s.tokens, s.words ? "words" : "rows", s.blocks,
           s.threads, us, wrong);
    fflush(stdout);
    *first = false;
    if (wrong != 0)
        exit(1);
    CHECK(cudaDeviceReset());
}

int main(int argc, char **argv)
{
    bool first = true;
    const uint32_t layouts[][2] = {{2, 2}, {3, 1}, {1, 3}};
    const uint32_t sizes[] = {1, 8, 32, 128, 512, 2048};
    int layout_count = argc > 1 ? atoi(argv[1]) : 1;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    printf(
        "{\"bench\": \"gpu_steps\", \"digest\": \"%s\", \"exchanges_per_graph\": %d, \"cells\": [",
        afd_digest(), EXCHANGES);
    for (int l = 0; l < layout_count; l++) {
        for (uint32_t tokens : sizes) {
            for (uint32_t words = 0; words < 2; words++) {
                for (uint32_t blocks : {8u, 33u}) {
                    setup s = {
                        layouts[l][0], layouts[l][1], 2048,   layouts[l][1] == 3 ? 96u : 128u, 8,
                        tokens,        words,         blocks, tokens <= 32 ? 512u : 256u};
                    if (words && tokens > 128)
                        continue;
                    run(s, &first);
                }
            }
        }
    }
    printf("\n]}\n");
    return 0;
}
