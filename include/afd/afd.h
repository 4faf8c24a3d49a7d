/* SPDX-License-Identifier: Apache-2.0 */
/*
 * afd.h - the public API of libafd.
 *
 * libafd moves Mixture-of-Experts tokens between Attention ranks (sources: they hold no experts)
 * and FFN ranks (they hold the experts and send no tokens). One exchange per MoE layer and
 * micro-batch:
 *
 *     Attention rank                          FFN rank
 *     afd_dispatch  -- rows, routes -->       afd_receive   rows grouped by expert
 *                                             ... the caller's expert GEMMs ...
 *     afd_collect   <-- reduced rows --       afd_reply     a token's local rows summed, sent back
 *
 * Rules that hold for every function here:
 *
 *  - Returns 0 on success and a negative AFD_E* code on failure; afd_last_error() then has one
 *    sentence that names both values and the rank that has them. Nothing that a caller, a peer or
 *    the system does makes the library exit or print; only a broken invariant of its own aborts.
 *
 *  - Outputs (arguments named *_out, and the fields said to be outputs) are written on success
 *    only.
 *
 *  - One thread at a time may use a group and its buffers; different groups are independent.
 *    afd_group_abort() alone may be called from any thread, at any time.
 *
 *  - Nothing between afd_buffer_create() and afd_buffer_close() allocates, locks or makes a system
 *    call on the data path; only a wait that is not satisfied soon yields to the operating system.
 */
#ifndef AFD_AFD_H
#define AFD_AFD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define AFD_API __attribute__((visibility("default")))
#define AFD_CHECK __attribute__((warn_unused_result))
#else
#define AFD_API
#define AFD_CHECK
#endif

#define AFD_VERSION_MAJOR 0
#define AFD_VERSION_MINOR 1
#define AFD_VERSION_PATCH 0

/* --------------------------------------------------------------------------------------- errors */

/* X(name, value, text). The value is what functions return. */
#define AFD_ERROR_LIST(X)                                                                          \
    X(AFD_EINVAL, -1, "invalid argument")                                                          \
    X(AFD_ENOMEM, -2, "out of memory")                                                             \
    X(AFD_ESTATE, -3, "call not legal in this state")                                              \
    X(AFD_EROLE, -4, "call not legal for this role")                                               \
    X(AFD_ECAPACITY, -5, "capacity exceeded")                                                      \
    X(AFD_EROUTE, -6, "invalid route")                                                             \
    X(AFD_EMISMATCH, -7, "ranks disagree")                                                         \
    X(AFD_EPEER, -8, "a peer is dead, gone or late")                                               \
    X(AFD_EABORTED, -9, "aborted")                                                                 \
    X(AFD_EUNSUPPORTED, -10, "not supported")                                                      \
    X(AFD_ESYSTEM, -11, "operating system error")                                                  \
    X(AFD_EBOOTSTRAP, -12, "bootstrap failed")                                                     \
    X(AFD_EPROTO, -13, "a peer sent something impossible")

#define AFD_OK 0

enum afd_error {
#define AFD_ERROR_ENUM(name, value, text) name = value,
    AFD_ERROR_LIST(AFD_ERROR_ENUM)
#undef AFD_ERROR_ENUM
};

/* The short text of a code ("capacity exceeded"); never NULL. */
AFD_API const char *afd_error_text(int code);
/* The code's name ("AFD_ECAPACITY"); never NULL. */
AFD_API const char *afd_error_name(int code);
/* The calling thread's last failure as one sentence; "" if there was none. Valid until the next
 * failing call of this thread. */
AFD_API const char *afd_last_error(void);
/* "0.1.0". */
AFD_API const char *afd_version(void);
/* 16 hexadecimal digits over src/shared and src/steps: ranks with different digests refuse to
 * talk. */
AFD_API const char *afd_digest(void);

/* --------------------------------------------------------------------------------------- groups */

enum afd_role {
    AFD_ROLE_ATTENTION = 1, /* a source: dispatches tokens, collects answers */
    AFD_ROLE_FFN = 2,       /* holds experts: receives rows, replies */
};

enum afd_backend {
    AFD_BACKEND_INLINE = 1, /* steps run in the calling thread; memory is host memory */
    AFD_BACKEND_CUDA = 2,   /* libafd-cuda */
};

enum afd_bootstrap_kind {
    AFD_BOOTSTRAP_TCP = 1,       /* rendezvous "host:port"; rank 0 listens there */
    AFD_BOOTSTRAP_CALLBACKS = 2, /* the caller's allgather */
    AFD_BOOTSTRAP_HUB = 3,       /* ranks are threads of this process */
    AFD_BOOTSTRAP_ENV = 4,       /* rank, world and rendezvous from the environment, then TCP */
};

struct afd_group;
struct afd_buffer;
struct afd_hub;

/* A meeting point for ranks that are threads of one process. Create one for `world` ranks, put it
 * into each rank's config, and destroy it after the last group on it is destroyed. A hub can carry
 * several groups one after another or, one hub each, at the same time. */
AFD_API AFD_CHECK int afd_hub_create(uint32_t world, struct afd_hub **hub_out);
AFD_API void afd_hub_destroy(struct afd_hub *hub);

/* The caller's own bootstrap (MPI, a key-value store, ...). allgather: every rank passes `bytes`
 * bytes (the same on all); on return `out` holds world * bytes, ordered by rank. Blocks until all
 * ranks came; returns 0, or nonzero on failure. Called by create functions only. */
struct afd_bootstrap_callbacks {
    int (*allgather)(void *context, const void *in, void *out, size_t bytes);
    void *context;
};

struct afd_group_config {
    uint32_t size;           /* sizeof(struct afd_group_config), set by afd_group_config_init() */
    uint32_t rank;           /* 0 .. world-1 */
    uint32_t world;          /* number of ranks, 2 .. 1024 */
    const uint8_t *roles;    /* [world] enum afd_role of every rank, any order; copied */
    const uint32_t *domains; /* [world] domain number of every rank; NULL: all in one; copied */
    uint32_t bootstrap;      /* enum afd_bootstrap_kind */
    uint32_t backend;        /* enum afd_backend */
    int32_t device;          /* CUDA device index; ignored by the inline backend */
    struct afd_hub *hub;     /* for AFD_BOOTSTRAP_HUB */
    struct afd_bootstrap_callbacks callbacks; /* for AFD_BOOTSTRAP_CALLBACKS */
    const char *rendezvous; /* for AFD_BOOTSTRAP_TCP: "host:port" or "[v6]:port"; copied */
    const char *key;        /* job key of the TCP bootstrap; NULL: AFD_KEY, or none */
    int32_t listen_fd;      /* rank 0 of TCP: an already listening socket to use (it is taken over
                               and closed), or -1: bind the rendezvous address */
    uint32_t reserved;      /* 0 */
    uint64_t bootstrap_timeout_us; /* how long create functions wait for peers */
    uint64_t deadline_us;          /* default deadline of a wait in an exchange, 1 ms .. 1 h */
};

/* Fills defaults: inline backend, TCP bootstrap, one domain, 30 s bootstrap, 10 s deadline. */
AFD_API void afd_group_config_init(struct afd_group_config *config);

/* Collective over the world. Checks that all ranks agree on world, roles, domains, wire version and
 * digest: a difference is AFD_EMISMATCH on every rank. */
AFD_API AFD_CHECK int afd_group_create(const struct afd_group_config *config,
                                       struct afd_group **group_out);
/* Needs no live peer. Buffers of the group must be closed before: else AFD_ESTATE, nothing freed.
 * NULL is allowed. */
AFD_API int afd_group_destroy(struct afd_group *group);
/* Releases every wait of an exchange, of this rank and of its peers, with AFD_EABORTED; every later
 * call on a buffer of the group fails with it. Waits of create functions end by their own timeout.
 * Any thread may call it, also a signal handler. */
AFD_API void afd_group_abort(struct afd_group *group);
AFD_API uint32_t afd_group_rank(const struct afd_group *group);
AFD_API uint32_t afd_group_world(const struct afd_group *group);
AFD_API uint32_t afd_group_role(const struct afd_group *group, uint32_t rank);

/* -------------------------------------------------------------------------------------- buffers */

#define AFD_TOPK_MAX 32u
#define AFD_STAGES_MAX 8u
#define AFD_CAPACITY_MAX 65536u
#define AFD_LOCAL_EXPERTS_MAX 65535u /* experts of one FFN rank */
#define AFD_WORDS_TOKENS_MAX 256u
#define AFD_BLOCKS_MAX 256u

enum afd_protocol {
    AFD_PROTOCOL_AUTO = 0, /* one domain: direct */
    AFD_PROTOCOL_DIRECT = 1,
    /* The symmetric baseline: every rank waits for every rank in all four verbs, also in dispatch.
     * Rows only (words_tokens and the variants have no effect), no indexed receive, no view. */
    AFD_PROTOCOL_UNION = 2,
};

enum afd_payload {
    AFD_PAYLOAD_BF16 = 1,      /* hidden x 2 bytes, no scales */
    AFD_PAYLOAD_FP8 = 2,       /* hidden E4M3 bytes, one FP32 scale per 128 elements */
    AFD_PAYLOAD_FP8_UE8M0 = 3, /* hidden E4M3 bytes, one UE8M0 byte per 128 elements */
    AFD_PAYLOAD_BYTES = 4,     /* payload_bytes opaque bytes + scale_bytes opaque bytes */
};

enum afd_reply_format {
    AFD_REPLY_BF16 = 1,
    AFD_REPLY_FP8 = 2, /* an option of the hybrid protocols */
};

enum afd_receive_layout {
    AFD_RECEIVE_EXPANDED = 1, /* rows copied, expert-major, groups aligned */
    AFD_RECEIVE_INDEXED = 2,  /* no copy: the inbox, and a slot number per row */
};

enum afd_scale_layout {
    AFD_SCALES_ROW_MAJOR = 0, /* a row's scales are contiguous */
    AFD_SCALES_COL_MAJOR = 1, /* scale g of all rows is contiguous; FP8 payloads only */
};

enum afd_variant {
    AFD_VARIANT_AUTO = 0,  /* words on GPUs at decode sizes, rows elsewhere */
    AFD_VARIANT_WORDS = 1, /* self-validating words wherever they fit, rows elsewhere */
    AFD_VARIANT_ROWS = 2,  /* rows with credits, always */
};

/* WIRE fields must be equal on all ranks of the group (else AFD_EMISMATCH on every rank); LOCAL
 * fields are each rank's own business. */
struct afd_buffer_config {
    uint32_t size;          /* sizeof(struct afd_buffer_config), set by the init function */
    uint32_t capacity;      /* WIRE  most tokens a source dispatches in one exchange, 1 .. 65,536 */
    uint32_t hidden;        /* WIRE  elements of a token, >= 1; the reply is hidden BF16 elements */
    uint32_t experts;       /* WIRE  routed experts over all FFN ranks, >= 1 */
    uint32_t topk;          /* WIRE  routes of a token, 1 .. 32 */
    uint32_t payload;       /* WIRE  enum afd_payload */
    uint32_t payload_bytes; /* WIRE  AFD_PAYLOAD_BYTES only: bytes of a row, >= 1 */
    uint32_t scale_bytes;   /* WIRE  AFD_PAYLOAD_BYTES only: opaque scale bytes of a row, >= 0 */
    uint32_t reply;         /* WIRE  enum afd_reply_format */
    uint32_t receive;       /* WIRE  enum afd_receive_layout (indexed needs rows, not words) */
    uint32_t protocol;      /* WIRE  enum afd_protocol */
    uint32_t stages;        /* WIRE  exchanges in flight, 1 .. 8 */
    uint32_t words_tokens;  /* WIRE  largest T that can travel as self-validating words, 0 .. 256 */
    uint32_t alignment;     /* LOCAL expert groups start at multiples of this many rows, >= 1 */
    uint32_t scale_layout;  /* LOCAL enum afd_scale_layout of the batch */
    uint32_t zero_padding;  /* LOCAL 1: padding rows of a batch are zeroed; 0: unspecified bytes */
    uint32_t weighted_reply;   /* LOCAL (FFN) 1: afd_reply multiplies each row by its weight */
    uint32_t blocks;           /* LOCAL blocks of a step, 0: chosen by the backend, at most 256 */
    uint32_t variant;          /* LOCAL enum afd_variant: how this rank's rows travel */
    uint32_t reply_variant;    /* LOCAL (Attention) enum afd_variant: how it wants its replies */
    const uint32_t *placement; /* WIRE [experts] FFN index (0 .. F-1) of every expert, or NULL: as
                                  even as possible, contiguous, the first experts % F ranks one
                                  more; copied */
    uint64_t batch_rows;       /* LOCAL (FFN) rows of the library's own batch memory per stage;
                               0: the most any exchange can need. Too few is AFD_ECAPACITY at the
                               exchange that needs more, with both numbers. */
    uint64_t deadline_us;      /* LOCAL 0: the group's */
    uint64_t first_epoch; /* WIRE  epoch of the first exchange, 1 .. 2^62; tests start near wraps */
};

/* Fills defaults: topk 8, BF16, expanded, direct, 1 stage, alignment 1, unweighted, words_tokens 0
 * (inline backend). capacity, hidden and experts stay 0 and must be set. */
AFD_API void afd_buffer_config_init(struct afd_buffer_config *config);

/* What a buffer needs, before anything is allocated. Bytes of one rank. */
#define AFD_MEMORY_REGIONS_MAX 16u
struct afd_memory_region {
    const char *name;    /* "words", "headers", "inbox", ...: static strings */
    uint64_t bytes;      /* over all stages */
    uint32_t registered; /* 1: part of the window that peers write; 0: private */
    uint32_t reserved;
};
struct afd_memory {
    uint64_t registered_bytes; /* the window */
    uint64_t private_bytes;    /* address space; pages are touched as they are used */
    uint32_t region_count;
    uint32_t reserved;
    struct afd_memory_region region[AFD_MEMORY_REGIONS_MAX];
};

/* Computes the memory of `rank` of a world with these roles. No group is needed; no side effects.
 * AFD_EINVAL with a sentence if the configuration is not legal. */
AFD_API AFD_CHECK int afd_buffer_memory(const struct afd_group_config *group,
                                        const struct afd_buffer_config *config, uint32_t rank,
                                        struct afd_memory *memory_out);

/* Collective over the group. Checks the configuration, compares WIRE fields over all ranks,
 * allocates and maps windows. A failure on one rank is a failure on every rank. */
AFD_API AFD_CHECK int afd_buffer_create(struct afd_group *group,
                                        const struct afd_buffer_config *config,
                                        struct afd_buffer **buffer_out);
/* Needs no live peer, legal in any state; peers that still wait for this rank get AFD_EPEER at
 * once. NULL is allowed. */
AFD_API int afd_buffer_close(struct afd_buffer *buffer);
/* LOCAL: blocks of the following steps, 1 .. 256; legal between exchanges. */
AFD_API AFD_CHECK int afd_buffer_set_blocks(struct afd_buffer *buffer, uint32_t blocks);
/* LOCAL: variants of the following dispatches and wanted replies; legal between exchanges. */
AFD_API AFD_CHECK int afd_buffer_set_variant(struct afd_buffer *buffer, uint32_t variant,
                                             uint32_t reply_variant);

/* What this rank is in this buffer. */
struct afd_buffer_info {
    uint32_t role;              /* enum afd_role */
    uint32_t index;             /* source index s or FFN index f of this rank */
    uint32_t sources;           /* N */
    uint32_t ffn_ranks;         /* F */
    uint32_t local_experts;     /* experts of this FFN rank (0 on Attention ranks) */
    uint32_t protocol;          /* enum afd_protocol, never auto */
    uint32_t payload_bytes;     /* bytes of a row's payload */
    uint32_t scale_bytes;       /* bytes of a row's scales */
    uint64_t reply_stride;      /* bytes from row to row of a collect view */
    const uint32_t *expert_ids; /* [local_experts] global ids, ascending; NULL on Attention ranks */
};
AFD_API AFD_CHECK int afd_buffer_info(const struct afd_buffer *buffer,
                                      struct afd_buffer_info *info_out);

/* ------------------------------------------------------------------------------------- exchange */

enum afd_id_type {
    AFD_IDS_INT64 = 0,
    AFD_IDS_INT32 = 1,
};

/* An Attention rank's tokens. Arrays belong to the caller and must stay valid and unchanged until
 * afd_dispatch() returns (inline) or the stream passed it (cuda). */
struct afd_tokens {
    uint32_t count;               /* T, 0 .. capacity */
    uint32_t id_type;             /* enum afd_id_type */
    const uint32_t *device_count; /* NULL, or where T is read when the step runs; `count` is then
                               its bound and picks the variant, the value found is what is sent */
    const void *x;                /* [T] rows of payload_bytes, x_stride apart; any alignment */
    uint64_t x_stride;            /* bytes; 0: payload_bytes */
    const void *scales;           /* [T] rows of scale_bytes; NULL iff the payload has no scales */
    uint64_t scales_stride;       /* bytes; 0: scale_bytes */
    const void *ids;              /* [T][topk] expert ids; -1: no route; no id twice in a row */
    const float *weights;         /* [T][topk] or NULL */
};

/* Attention: sends the tokens of one exchange on `stage`. Waits for nothing (protocol union: until
 * all ranks are in dispatch or receive). Routes are checked before anything moves: a bad id is
 * AFD_EROUTE naming rank, token, lane and the full-width id, T > capacity is AFD_ECAPACITY; both
 * leave the buffer as it was, and the call may be repeated. */
AFD_API AFD_CHECK int afd_dispatch(struct afd_buffer *buffer, uint32_t stage,
                                   const struct afd_tokens *tokens, void *stream);

/* What an FFN rank received. Pointers are owned by the buffer and valid until afd_reply() of the
 * same stage returns. Row r of expert e: offsets[e] <= r < offsets[e] + counts[e], ordered by
 * source, then token. Rows between offsets[e] + counts[e] and offsets[e+1] are padding. */
struct afd_batch {
    uint32_t size;           /* in: sizeof(struct afd_batch) */
    uint32_t tokens_hint;    /* in: expected tokens per source, sizes a GPU launch; 0: unknown */
    void *rows;              /* in: the caller's memory if rows_capacity is not 0; out: expanded
                               rows, in the caller's or the library's memory; indexed: NULL */
    uint64_t rows_stride;    /* in for the caller's memory (0: payload_bytes); out: bytes */
    uint64_t rows_capacity;  /* in: rows the caller's memory holds; 0: use the library's */
    const uint32_t *counts;  /* out [local_experts] rows of each expert, without padding */
    const uint32_t *offsets; /* out [local_experts + 1] first row of each; last: row_count */
    const void *scales; /* out: expanded scales, or NULL; indexed: scales lie behind the payload */
    uint64_t scales_row_stride;   /* out: bytes between rows of one group of scales */
    uint64_t scales_group_stride; /* out: bytes between scale g and g + 1 of one row */
    const float *weights;  /* out [row_count] weight of each row, NULL if no source sent weights */
    const uint32_t *slots; /* out [row_count] source * capacity + token of each row;
                               AFD_SLOT_NONE in padding */
    const void *inbox;     /* out, indexed: row r is at inbox + slots[r] * inbox_stride */
    uint64_t inbox_stride; /* out, bytes */
    uint64_t inbox_scales_offset;  /* out, bytes from a row's start to its scales */
    uint64_t row_count;            /* out: rows with padding = offsets[local_experts] */
    uint64_t token_count;          /* out: distinct (source, token) pairs received */
    const uint64_t *expert_totals; /* out [local_experts] rows per expert over all exchanges of the
                               buffer, cumulative */
};
#define AFD_SLOT_NONE 0xffffffffu

AFD_API void afd_batch_init(struct afd_batch *batch);

/* FFN: waits for every source's rows of this exchange (also of sources with T = 0). */
AFD_API AFD_CHECK int afd_receive(struct afd_buffer *buffer, uint32_t stage,
                                  struct afd_batch *batch, void *stream);

/* FFN: sums each token's local rows in ascending order of expert (FP32, one rounding to BF16) and
 * sends them to their sources. rows: [row_count][hidden] BF16, rows_stride bytes apart (0: hidden x
 * 2), in the order of the batch; padding rows are not read. It must not overlap the inbox. */
AFD_API AFD_CHECK int afd_reply(struct afd_buffer *buffer, uint32_t stage, const void *rows,
                                uint64_t rows_stride, void *stream);

/* Where and how collected rows are wanted. */
struct afd_output {
    uint32_t size;        /* in: sizeof(struct afd_output) */
    uint32_t view;        /* in: 1: no copy, F = 1 only, no bias; rows and rows_stride are outputs,
                               valid until the next dispatch on this stage */
    void *rows;           /* in: [T][hidden] BF16 (copy), written; out for a view */
    uint64_t rows_stride; /* in for a copy (0: hidden x 2); out for a view, bytes */
    const void *bias[2];  /* in: NULL or [T][hidden] BF16, contiguous, added before the replies */
    uint32_t count;       /* out: T of this exchange */
    uint32_t reserved;
};
AFD_API void afd_output_init(struct afd_output *output);

/* Attention: waits for every FFN rank's reply of this exchange and adds them, in ascending order of
 * FFN index. A token without any route gives a zero row (or its bias). After a fault the rows that
 * were not finished are NaN. */
AFD_API AFD_CHECK int afd_collect(struct afd_buffer *buffer, uint32_t stage,
                                  struct afd_output *output, void *stream);

/* --------------------------------------------------------------------------------------- faults */

enum afd_phase {
    AFD_PHASE_NONE = 0,
    AFD_PHASE_DISPATCH = 1,
    AFD_PHASE_RECEIVE = 2,
    AFD_PHASE_REPLY = 3,
    AFD_PHASE_COLLECT = 4,
};

/* The words ranks wait for; doc/protocol.md says who writes and reads each. */
enum afd_word_kind {
    AFD_WORD_NONE = 0,
    AFD_WORD_HEADER = 1, /* source -> FFN, LL: this exchange's header */
    AFD_WORD_ROUTES = 2, /* source -> FFN, release: the route table of a rows header is there */
    AFD_WORD_CREDIT = 3, /* source -> FFN, add: units of rows that arrived, cumulative */
    AFD_WORD_SLOT = 4,   /* source -> FFN, LL: a piece of a row */
    AFD_WORD_REPLY_HEADER = 5, /* FFN -> source, LL: this exchange's reply header */
    AFD_WORD_REPLY_CREDIT = 6, /* FFN -> source, add: units of reply rows, cumulative */
    AFD_WORD_REPLY_SLOT = 7,   /* FFN -> source, LL: a piece of a reply row */
    AFD_WORD_BLOCKS = 8,       /* this step's own blocks */
    AFD_WORD_STATE = 9,        /* the stage's state word */
    AFD_WORD_BARRIER = 10,     /* union: every rank -> every rank, add: it came here */
    AFD_WORD_COUNTS = 11,      /* union: every rank -> every rank: rows and pairs to come */
};

/* What went wrong where. */
struct afd_fault {
    int32_t code;      /* AFD_E*, 0: no fault */
    uint32_t rank;     /* the rank at fault (dead, late, or with the bad input) */
    uint32_t reporter; /* the rank that found it */
    uint32_t phase;    /* enum afd_phase the reporter was in */
    uint32_t stage;
    uint32_t block;    /* block of the reporter's step */
    uint32_t word;     /* enum afd_word_kind: which word it waited for */
    uint32_t peer;     /* whose word that was; UINT32_MAX if no peer was involved */
    uint64_t epoch;    /* exchange number on that stage */
    uint64_t expected; /* value waited for */
    uint64_t seen;     /* value found */
};

/* The buffer's first fault: 0 and a filled structure if it failed, AFD_ESTATE if it did not. */
AFD_API AFD_CHECK int afd_buffer_fault(const struct afd_buffer *buffer,
                                       struct afd_fault *fault_out);
AFD_API const char *afd_phase_name(uint32_t phase);

#ifdef __cplusplus
}
#endif
#endif
