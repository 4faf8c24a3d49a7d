// SPDX-License-Identifier: Apache-2.0
// cuda_steps.cu - the steps in trivial kernels: proves that the single source is CUDA, and lets the
// compiler report registers and spills. Compiled in `make test` wherever nvcc is; never run.

#include "steps/attention_collect.h"
#include "steps/attention_dispatch.h"
#include "steps/ffn_receive.h"
#include "steps/ffn_reply.h"
#include "steps/union_combine.h"
#include "steps/union_dispatch.h"
#include "steps/union_expand.h"
#include "steps/union_reduce.h"

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

extern "C" __global__ void attention_dispatch(struct afd_exec *exec,
                                              const __grid_constant__ struct afd_dispatch_args args)
{
    afd_step_attention_dispatch(lane_here(exec), &args);
}

extern "C" __global__ void ffn_receive(struct afd_exec *exec,
                                       const __grid_constant__ struct afd_receive_args args)
{
    afd_step_ffn_receive(lane_here(exec), &args);
}

extern "C" __global__ void ffn_reply(struct afd_exec *exec,
                                     const __grid_constant__ struct afd_reply_args args)
{
    afd_step_ffn_reply(lane_here(exec), &args);
}

extern "C" __global__ void attention_collect(struct afd_exec *exec,
                                             const __grid_constant__ struct afd_collect_args args)
{
    afd_step_attention_collect(lane_here(exec), &args);
}

extern "C" __global__ void
union_dispatch(struct afd_exec *exec, const __grid_constant__ struct afd_union_dispatch_args args)
{
    afd_step_union_dispatch(lane_here(exec), &args);
}

extern "C" __global__ void union_expand(struct afd_exec *exec,
                                        const __grid_constant__ struct afd_union_expand_args args)
{
    afd_step_union_expand(lane_here(exec), &args);
}

extern "C" __global__ void union_combine(struct afd_exec *exec,
                                         const __grid_constant__ struct afd_union_combine_args args)
{
    afd_step_union_combine(lane_here(exec), &args);
}

extern "C" __global__ void union_reduce(struct afd_exec *exec,
                                        const __grid_constant__ struct afd_union_reduce_args args)
{
    afd_step_union_reduce(lane_here(exec), &args);
}
