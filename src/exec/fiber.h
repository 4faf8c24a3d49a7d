/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fiber.h - blocks of one step as fibers of one thread: switched without a system call.
 *
 * A set of fibers is created once and reused; run starts `count` of them and returns when all have
 * returned. A fiber gives up its turn with afd_fibers_yield(); turns go round.
 */
#ifndef AFD_EXEC_FIBER_H
#define AFD_EXEC_FIBER_H

#include <stdint.h>

struct afd_fibers;

/* `body` runs on fiber `index` with the context given to run. */
typedef void (*afd_fiber_fn)(void *context, uint32_t index);

/* At most `most` fibers. AFD_ENOMEM with the sentence on failure. */
int afd_fibers_create(uint32_t most, struct afd_fibers **fibers_out);
void afd_fibers_destroy(struct afd_fibers *fibers);
/* Makes the stacks of the first `count` fibers; count <= most. */
int afd_fibers_prepare(struct afd_fibers *fibers, uint32_t count);
/* Runs body on fibers 0 .. count-1, which are prepared. Allocates nothing. */
void afd_fibers_run(struct afd_fibers *fibers, uint32_t count, afd_fiber_fn body, void *context);
/* From inside a fiber: lets the others run. Returns the number of fibers that are not done. */
uint32_t afd_fibers_yield(struct afd_fibers *fibers);

/* For a scheduler that decides itself who runs: bind once, then arm a fiber for one run of its body
 * and resume it until it is done. Nonzero: it yielded and has to be resumed again. */
void afd_fibers_bind(struct afd_fibers *fibers, afd_fiber_fn body, void *context);
void afd_fibers_arm(struct afd_fibers *fibers, uint32_t index);
int afd_fibers_resume(struct afd_fibers *fibers, uint32_t index);

#endif
