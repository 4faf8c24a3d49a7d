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
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stop.h"

#define LOOK_EVERY_MS 100
#define JOIN_MIN_US 1000000u /* to find each other, also when the deadline is shorter */
#define GRACE_US 5000000u    /* more than the second that ranks may take beyond their deadline */

int cli_results_alloc(const struct cli_job *job, struct cli_results *results)
{
    size_t records = ((size_t)job->layout.world * sizeof(struct cli_record) + 63) / 64 * 64;
    size_t times = (size_t)job->layout.world * (job->timed + 1) * sizeof(double);
    void *shared = mmap(NULL, records + times, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memset(results, 0, sizeof(*results));
    results->signal = calloc(job->layout.world, sizeof(*results->signal));
    results->killed = calloc(job->layout.world, sizeof(*results->killed));
    if (shared == MAP_FAILED || results->signal == NULL || results->killed == NULL)
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
    free(results->killed);
    memset(results, 0, sizeof(*results));
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
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

/* ------------------------------------------------------------------------------------ processes */

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

static void signal_children(const struct cli_job *job, const pid_t *pids, int signal_number)
{
    for (uint32_t r = 0; r < job->layout.world; r++)
        if (pids[r] > 0)
            kill(pids[r], signal_number);
}

/* Reaps whoever has ended; 1 if one of them failed. A reaped rank's pid becomes 0. */
static int reap(const struct cli_job *job, struct cli_results *results, pid_t *pids, uint32_t *left)
{
    int status;
    int failed = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        int rank = rank_of(pids, job->layout.world, pid);
        if (rank < 0)
            continue;
        pids[rank] = 0;
        (*left)--;
        if (results->killed[rank])
            continue;
        results->signal[rank] = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) == CLI_FAILED;
    }
    return failed;
}

/* Asleep until a child ends, an interrupt comes (`waited` has both, blocked), or the bar is due. A
 * first interrupt asks the ranks to abort, a second one kills. Once a rank has failed the others
 * have their deadline to end by themselves; one that cannot (it was stopped, for instance) is
 * killed. */
static void wait_for_children(const struct cli_job *job, struct cli_results *results, pid_t *pids,
                              const sigset_t *waited)
{
    struct timespec look = {0, LOOK_EVERY_MS * 1000000L};
    uint64_t give_up_us = UINT64_MAX;
    uint32_t left = 0;
    for (uint32_t r = 0; r < job->layout.world; r++)
        left += pids[r] > 0;
    while (left > 0) {
        int got = sigtimedwait(waited, NULL, &look);
        if (got == SIGINT || got == SIGTERM) {
            signal_children(job, pids, cli_stop_signal() == 0 ? SIGTERM : SIGKILL);
            cli_stop_note(got);
        }
        if (reap(job, results, pids, &left) && give_up_us == UINT64_MAX)
            give_up_us = now_us() + job->deadline_us + GRACE_US;
        if (now_us() > give_up_us) {
            for (uint32_t r = 0; r < job->layout.world; r++)
                results->killed[r] |= pids[r] > 0;
            signal_children(job, pids, SIGKILL);
            give_up_us = UINT64_MAX;
        }
        show_progress(job, results);
    }
}

/* A child: one rank, which dies with its parent. */
static void be_rank(const struct cli_job *job, struct cli_results *results, uint32_t rank,
                    const struct cli_meeting *meeting, pid_t parent)
{
    sigset_t none;
    int rc;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(CLI_FAILED);
    cli_stop_install();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    rc = cli_rank_run(job, rank, meeting, &results->record[rank],
                      results->times_us + rank * job->timed);
    _exit(rc);
}

/* Starts all ranks; what could be started is in pids. */
static int fork_ranks(const struct cli_job *job, struct cli_results *results, pid_t *pids)
{
    struct cli_meeting meeting;
    char address[32];
    pid_t parent = getpid();
    int listener = -1;
    int rc = listen_anywhere(&listener, address, sizeof(address));
    if (rc != CLI_OK)
        return rc;
    memset(&meeting, 0, sizeof(meeting));
    meeting.bootstrap = AFD_BOOTSTRAP_TCP;
    meeting.rendezvous = address;
    meeting.timeout_us = job->deadline_us > JOIN_MIN_US ? job->deadline_us : JOIN_MIN_US;
    fflush(NULL);
    for (uint32_t r = 0; rc == CLI_OK && r < job->layout.world; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            meeting.listen_fd = r == 0 ? listener : -1;
            if (r != 0)
                close(listener);
            be_rank(job, results, r, &meeting, parent);
        }
        if (pids[r] < 0)
            rc = cli_error(CLI_FAILED, "starting rank %u: %s", r, strerror(errno));
    }
    close(listener);
    return rc;
}

static int launch_processes(const struct cli_job *job, struct cli_results *results)
{
    pid_t *pids = calloc(job->layout.world, sizeof(*pids));
    sigset_t waited;
    sigset_t before;
    int rc;
    if (pids == NULL)
        return cli_error(CLI_FAILED, "no memory for %u ranks", job->layout.world);
    sigemptyset(&waited);
    sigaddset(&waited, SIGCHLD);
    sigaddset(&waited, SIGINT);
    sigaddset(&waited, SIGTERM);
    sigprocmask(SIG_BLOCK, &waited, &before);
    rc = fork_ranks(job, results, pids);
    if (rc != CLI_OK)
        signal_children(job, pids, SIGKILL);
    wait_for_children(job, results, pids, &waited);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(pids);
    return rc;
}

/* -------------------------------------------------------------------------------------- threads */

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

/* Joins all, showing the bar meanwhile. */
static void wait_for_threads(const struct cli_job *job, struct cli_results *results,
                             const struct thread *threads)
{
    for (uint32_t r = 0; r < job->layout.world; r++) {
        int rc;
        do {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += LOOK_EVERY_MS * 1000000L;
            until.tv_sec += until.tv_nsec / 1000000000L;
            until.tv_nsec %= 1000000000L;
            rc = pthread_timedjoin_np(threads[r].id, NULL, &until);
            show_progress(job, results);
        } while (rc == ETIMEDOUT);
    }
}

/* Interrupts are this thread's business, so the ranks are started with them blocked. */
static void start_threads(const struct cli_job *job, struct thread *threads)
{
    sigset_t stops;
    sigset_t before;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stops, &before);
    for (uint32_t r = 0; r < job->layout.world; r++)
        if (pthread_create(&threads[r].id, NULL, thread_main, &threads[r]) != 0)
            _exit(cli_error(CLI_FAILED, "starting rank %u as a thread failed", r));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int launch_threads(const struct cli_job *job, struct cli_results *results)
{
    uint32_t world = job->layout.world;
    struct thread *threads = calloc(world, sizeof(*threads));
    struct afd_hub *hub;
    if (threads == NULL || afd_hub_create(world, &hub) != 0) {
        free(threads);
        return cli_error(CLI_FAILED, "no memory for %u ranks", world);
    }
    for (uint32_t r = 0; r < world; r++) {
        threads[r].job = job;
        threads[r].results = results;
        threads[r].rank = r;
        threads[r].meeting.bootstrap = AFD_BOOTSTRAP_HUB;
        threads[r].meeting.hub = hub;
        threads[r].meeting.listen_fd = -1;
    }
    cli_stop_install();
    start_threads(job, threads);
    wait_for_threads(job, results, threads);
    afd_hub_destroy(hub);
    free(threads);
    return CLI_OK;
}

int cli_launch(const struct cli_job *job, struct cli_results *results)
{
    int rc = job->threads ? launch_threads(job, results) : launch_processes(job, results);
    cli_progress_end();
    return rc;
}
