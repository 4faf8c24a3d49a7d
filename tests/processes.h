/* SPDX-License-Identifier: Apache-2.0 */
/*
 * processes.h - ranks as processes of this machine: forked by the test, they meet over TCP at a
 * socket that the test has made, and tell what they saw in memory that they share with it.
 *
 * Fork before the test has threads. A rank that outlives its test is killed by the system.
 */
#ifndef TESTS_PROCESSES_H
#define TESTS_PROCESSES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "job.h"

#define PROCESSES_MAX 16u
#define PROCESSES_RENDEZVOUS 32u

/* What a rank is told. */
struct processes_self {
    uint32_t rank;
    uint32_t world;
    int listen_fd;                         /* rank 0: its listening socket, else -1 */
    char rendezvous[PROCESSES_RENDEZVOUS]; /* "127.0.0.1:<port>" */
    void *shared;
};

/* A rank's whole life; what it returns is its exit code. */
typedef int (*processes_live)(struct processes_self *self);

struct processes {
    uint32_t world;
    pid_t pid[PROCESSES_MAX];  /* 0: has ended */
    int status[PROCESSES_MAX]; /* as of waitpid() */
    void *shared;              /* zeroed at the start */
    size_t shared_bytes;
};

void processes_start(struct processes *p, uint32_t world, size_t shared_bytes, processes_live live);
/* Waits for all ranks and kills those that are late. Returns how many were. */
uint32_t processes_wait(struct processes *p, uint32_t timeout_ms);
/* kill -9 of a rank. */
void processes_kill(struct processes *p, uint32_t rank);
/* kill -9 of those that are left; gives the shared memory back. */
void processes_end(struct processes *p);
/* 1 if the rank returned `code`. */
int processes_returned(const struct processes *p, uint32_t rank, int code);

/* A socket that listens on a free port of 127.0.0.1. */
int processes_listen(char rendezvous_out[PROCESSES_RENDEZVOUS]);
/* In a rank: its group and buffer of a job that job_init() made, so that the job's verbs work for
 * this rank. The listening socket is used up. 0, or what the create function returned. */
int processes_open(struct processes_self *self, struct job *job);
/* Open descriptors of this process. */
uint32_t processes_descriptors(void);
/* Mappings of windows in this process. */
uint32_t processes_windows(void);
void processes_sleep_us(uint64_t us);

#endif
