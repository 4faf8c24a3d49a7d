/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - ranks as direct children or as threads; the parent sleeps while they work. */

#include "launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY_MS 50

int cli_results_alloc(const struct cli_job *job, struct cli_results *results)
{
    size_t records = ((size_t)job->layout.world * sizeof(struct cli_record) + 63) / 64 * 64;
    size_t times = (size_t)job->layout.world * (job->timed + 1) * sizeof(double);
    void *shared = mmap(NULL, records + times, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memset(results, 0, sizeof(*results));
    results->signal = calloc(job->layout.world, sizeof(*results->signal));
    if (shared == MAP_FAILED || results->signal == NULL)
        return cli_error(CLI_FAILED, "no memory for the results of %u ranks", job->layout.world);
    results->bytes = records + times;
    results->record = shared;
    results->times_us = (double *)(void *)((uint8_t *)shared + records);
    return CLI_OK;
}

void cli_results_free(struct cli_results *results)
{
    if (results->record != NULL)
        munmap(results->record, results->bytes);
    free(results->signal);
    memset(results, 0, sizeof(*results));
}

static void show_progress(const struct cli_job *job, const struct cli_results *results)
{
    uint64_t least = job->exchanges;
    for (uint32_t r = 0; r < job->layout.world; r++) {
        uint64_t at = __atomic_load_n(&results->record[r].exchange, __ATOMIC_RELAXED);
        least = at < least ? at : least;
    }
    cli_progress("exchanges", least, job->exchanges);
}

/* --------------------------------------------------------------------------------------- processes */

/* A listening socket on a free port of the loopback interface. */
static int listen_anywhere(int *fd_out, char *address, size_t bytes)
{
    struct sockaddr_in at;
    socklen_t length = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&at, 0, sizeof(at));
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &length) != 0) {
        if (fd >= 0)
            close(fd);
        return cli_error(CLI_FAILED, "listening on the loopback interface: %s", strerror(errno));
    }
    snprintf(address, bytes, "127.0.0.1:%u", ntohs(at.sin_port));
    *fd_out = fd;
    return CLI_OK;
}

static int rank_of(const pid_t *pids, uint32_t world, pid_t pid)
{
    for (uint32_t r = 0; r < world; r++)
        if (pids[r] == pid)
            return (int)r;
    return -1;
}

/* Reaps until all have ended, asleep between looks. */
static void wait_for_children(const struct cli_job *job, struct cli_results *results, pid_t *pids)
{
    uint32_t left = 0;
    for (uint32_t r = 0; r < job->layout.world; r++)
        left += pids[r] > 0;
    while (left > 0) {
        struct timespec nap = {0, LOOK_EVERY_MS * 1000000L};
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        int rank = pid > 0 ? rank_of(pids, job->layout.world, pid) : -1;
        if (pid == 0 || (pid < 0 && errno == EINTR)) {
            show_progress(job, results);
            nanosleep(&nap, NULL);
        } else if (pid < 0) {
            return;
        } else if (rank >= 0) {
            results->signal[rank] = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
            left--;
        }
    }
}

static int launch_processes(const struct cli_job *job, struct cli_results *results)
{
    uint32_t world = job->layout.world;
    pid_t *pids = calloc(world, sizeof(*pids));
    struct cli_meeting meeting = {AFD_BOOTSTRAP_TCP, NULL, NULL, -1};
    char address[32];
    int listener = -1;
    int rc = pids == NULL ? CLI_FAILED : listen_anywhere(&listener, address, sizeof(address));
    if (rc != CLI_OK) {
        free(pids);
        return rc;
    }
    meeting.rendezvous = address;
    fflush(NULL);
    for (uint32_t r = 0; rc == CLI_OK && r < world; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            signal(SIGINT, SIG_DFL);
            meeting.listen_fd = r == 0 ? listener : -1;
            if (r != 0)
                close(listener);
            rc = cli_rank_run(job, r, &meeting, &results->record[r],
                              results->times_us + r * job->timed);
            _exit(rc);
        }
        if (pids[r] < 0)
            rc = cli_error(CLI_FAILED, "starting rank %u: %s", r, strerror(errno));
    }
    close(listener);
    signal(SIGINT, SIG_IGN); /* an interrupt ends the children; this process reports it */
    for (uint32_t r = 0; rc != CLI_OK && r < world; r++)
        if (pids[r] > 0)
            kill(pids[r], SIGKILL);
    wait_for_children(job, results, pids);
    free(pids);
    return rc;
}

/* ----------------------------------------------------------------------------------------- threads */

struct thread {
    const struct cli_job *job;
    struct cli_results *results;
    struct cli_meeting meeting;
    uint32_t rank;
    pthread_t id;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    (void)cli_rank_run(t->job, t->rank, &t->meeting, &t->results->record[t->rank],
                       t->results->times_us + t->rank * t->job->timed);
    return NULL;
}

static int all_ended(const struct cli_job *job, const struct cli_results *results)
{
    for (uint32_t r = 0; r < job->layout.world; r++)
        if (!__atomic_load_n(&results->record[r].ended, __ATOMIC_ACQUIRE))
            return 0;
    return 1;
}

static int launch_threads(const struct cli_job *job, struct cli_results *results)
{
    uint32_t world = job->layout.world;
    struct thread *threads = calloc(world, sizeof(*threads));
    struct cli_meeting meeting = {AFD_BOOTSTRAP_HUB, NULL, NULL, -1};
    if (threads == NULL || afd_hub_create(world, &meeting.hub) != 0) {
        free(threads);
        return cli_error(CLI_FAILED, "no memory for %u ranks", world);
    }
    for (uint32_t r = 0; r < world; r++) {
        struct thread one = {job, results, meeting, r, 0};
        threads[r] = one;
        if (pthread_create(&threads[r].id, NULL, thread_main, &threads[r]) != 0)
            _exit(cli_error(CLI_FAILED, "starting rank %u as a thread failed", r));
    }
    while (!all_ended(job, results)) {
        struct timespec nap = {0, LOOK_EVERY_MS * 1000000L};
        show_progress(job, results);
        nanosleep(&nap, NULL);
    }
    for (uint32_t r = 0; r < world; r++)
        pthread_join(threads[r].id, NULL);
    afd_hub_destroy(meeting.hub);
    free(threads);
    return CLI_OK;
}

int cli_launch(const struct cli_job *job, struct cli_results *results)
{
    int rc = job->threads ? launch_threads(job, results) : launch_processes(job, results);
    cli_progress_end();
    return rc;
}
