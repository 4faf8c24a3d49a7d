/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - the timeline of one schedule: as text around its end, and as a Chrome trace with one
 * track per block and an arrow from every store to each access that saw it.
 */
#include "exec/sim/state.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

#define TEXT_EVENTS 120u /* before the end */

struct event {
    uint64_t time; /* accesses before it */
    uint64_t at;
    uint64_t value;
    const char *what;
    uint32_t block;
    uint32_t seq; /* of the store it issues */
    uint32_t saw; /* event of the store it saw, UINT32_MAX: none */
    uint32_t bytes;
    char act[56];
};

struct afd_sim_trace {
    struct event *event;
    uint32_t count;
    uint32_t room;
};

/* --------------------------------------------------------------------------------------- record */

static struct event *add(struct afd_sim *sim, const struct afd_sim_block *b, const char *what)
{
    struct afd_sim_trace *trace = sim->trace;
    struct event *e;
    if (trace->count == trace->room) {
        trace->room = trace->room == 0 ? 1024 : trace->room * 2;
        trace->event = realloc(trace->event, trace->room * sizeof(*trace->event));
        AFD_ASSERT(trace->event != NULL);
    }
    e = &trace->event[trace->count++];
    memset(e, 0, sizeof(*e));
    e->time = sim->accesses;
    e->what = what;
    e->block = b->id;
    e->saw = UINT32_MAX;
    return e;
}

static uint32_t issued_by(const struct afd_sim_trace *trace, uint32_t block, uint32_t seq)
{
    for (uint32_t i = trace->count; i-- > 0;)
        if (trace->event[i].block == block && trace->event[i].seq == seq)
            return i;
    return UINT32_MAX;
}

void afd_sim_trace_access(struct afd_sim *sim, const struct afd_sim_block *b, const char *what,
                          uint64_t at, uint64_t bytes, uint64_t value)
{
    const struct afd_sim_cell *cell = &sim->cell[at / AFD_SIM_CELL];
    int reads =
        strcmp(what, "load") == 0 || strcmp(what, "look") == 0 || strcmp(what, "acquire") == 0;
    uint32_t saw = UINT32_MAX;
    struct event *e;
    if (reads && cell->v_seq != 0)
        saw = issued_by(sim->trace, cell->v_block, cell->v_seq);
    e = add(sim, b, what);
    e->at = at;
    e->bytes = (uint32_t)bytes;
    e->value = value;
    e->saw = saw;
    e->seq = reads ? 0 : b->seq + 1;
}

void afd_sim_trace_arrival(struct afd_sim *sim, const struct afd_sim_block *b,
                           const struct afd_sim_store *store)
{
    uint32_t from = issued_by(sim->trace, b->id, store->seq);
    struct event *e = add(sim, b, "arrives");
    e->at = store->at;
    e->bytes = store->bytes;
    e->saw = from;
}

void afd_sim_trace_step(struct afd_sim *sim, const struct afd_sim_block *b, int begin)
{
    struct event *e = add(sim, b, begin ? "begin" : "end");
    const char *where = strchr(afd_sim_where(sim, b->id), ')');
    snprintf(e->act, sizeof(e->act), "%s", where != NULL ? where + 3 : "");
}

/* ---------------------------------------------------------------------------------------- write */

static void write_text(const struct afd_sim *sim, FILE *to)
{
    const struct afd_sim_trace *trace = sim->trace;
    uint32_t first = trace->count > TEXT_EVENTS ? trace->count - TEXT_EVENTS : 0;
    fprintf(to, "    access  rank block\n");
    for (uint32_t i = first; i < trace->count; i++) {
        const struct event *e = &trace->event[i];
        const struct afd_sim_block *b = &sim->block[e->block];
        fprintf(to, "%10llu  %4u %5u  %-8s ", (unsigned long long)e->time, b->rank, b->index,
                e->what);
        if (e->bytes == 0)
            fprintf(to, "%s\n", e->act);
        else
            fprintf(to, "%s, %u bytes, %llu\n", afd_sim_place_name(sim, e->at), e->bytes,
                    (unsigned long long)e->value);
    }
}

static void write_event(const struct afd_sim *sim, uint32_t i, FILE *to)
{
    const struct event *e = &sim->trace->event[i];
    const struct afd_sim_block *b = &sim->block[e->block];
    const char *name = e->bytes == 0 ? e->act : afd_sim_place_name(sim, e->at);
    const char *phase = strcmp(e->what, "begin") == 0 ? "B"
                        : strcmp(e->what, "end") == 0 ? "E"
                                                      : "X";
    if (strcmp(e->what, "arrives") == 0)
        phase = "i";
    fprintf(to, ",\n{\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%llu%s,\"name\":\"%s %s\"}", phase,
            b->rank, b->index, (unsigned long long)e->time * 10,
            phase[0] == 'X'   ? ",\"dur\":8"
            : phase[0] == 'i' ? ",\"s\":\"t\""
                              : "",
            e->what, name);
    if (e->saw == UINT32_MAX || phase[0] == 'i')
        return;
    const struct event *from = &sim->trace->event[e->saw];
    const struct afd_sim_block *writer = &sim->block[from->block];
    fprintf(
        to,
        ",\n{\"ph\":\"s\",\"cat\":\"order\",\"name\":\"sees\",\"id\":%u,\"pid\":%u,\"tid\":%u,"
        "\"ts\":%llu},\n{\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"order\",\"name\":\"sees\",\"id\":%u,"
        "\"pid\":%u,\"tid\":%u,\"ts\":%llu}",
        i, writer->rank, writer->index, (unsigned long long)from->time * 10 + 1, i, b->rank,
        b->index, (unsigned long long)e->time * 10 + 1);
}

static void write_chrome(const struct afd_sim *sim, FILE *to)
{
    fprintf(to, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":"
                "\"process_sort_index\",\"args\":{\"sort_index\":0}}");
    for (uint32_t r = 0; r < sim->world; r++)
        fprintf(
            to,
            ",\n{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{\"name\":\"rank %u "
            "(%s %u)\"}}",
            r, r, sim->rank[r].role == AFD_ROLE_FFN ? "FFN" : "source", sim->rank[r].index);
    for (uint32_t i = 0; i < sim->trace->count; i++)
        write_event(sim, i, to);
    fprintf(to, "\n]}\n");
}

int afd_sim_explain(struct afd_sim *sim, uint64_t seed, FILE *text, FILE *chrome,
                    struct afd_sim_report *report_out)
{
    struct afd_sim_trace trace = {malloc(1024 * sizeof(struct event)), 0, 1024};
    int rc;
    if (trace.event == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for a trace");
    sim->trace = &trace;
    rc = afd_sim_run(sim, seed, report_out);
    if (rc == 0 && text != NULL) {
        write_text(sim, text);
        if (report_out->oracle != AFD_ORACLE_NONE)
            fprintf(text, "%s: %s\n", afd_oracle_name(report_out->oracle), report_out->text);
    }
    if (rc == 0 && chrome != NULL)
        write_chrome(sim, chrome);
    sim->trace = NULL;
    free(trace.event);
    return rc;
}
