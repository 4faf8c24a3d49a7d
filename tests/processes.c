/* SPDX-License-Identifier: Apache-2.0 */
/* processes.c - ranks as processes of this machine. */

#include "processes.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
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

void processes_sleep_us(uint64_t us)
{
    struct timespec nap = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&nap, NULL);
}

/* ---- the parent */

int processes_listen(char rendezvous_out[PROCESSES_RENDEZVOUS])
{
    struct sockaddr_in at;
    socklen_t bytes = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&at, 0, sizeof(at));
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        listen(fd, (int)PROCESSES_MAX) != 0 || getsockname(fd, (struct sockaddr *)&at, &bytes) != 0)
        abort();
    snprintf(rendezvous_out, PROCESSES_RENDEZVOUS, "127.0.0.1:%u", ntohs(at.sin_port));
    return fd;
}

void processes_start(struct processes *p, uint32_t world, size_t shared_bytes, processes_live live)
{
    struct processes_self self;
    pid_t parent = getpid();
    int listener;
    if (world > PROCESSES_MAX)
        abort();
    memset(p, 0, sizeof(*p));
    memset(&self, 0, sizeof(self));
    p->world = self.world = world;
    p->shared_bytes = shared_bytes;
    p->shared = mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p->shared == MAP_FAILED)
        abort();
    self.shared = p->shared;
    listener = processes_listen(self.rendezvous);
    fflush(NULL);
    for (uint32_t r = 0; r < world; r++) {
        p->pid[r] = fork();
        if (p->pid[r] < 0)
            abort();
        if (p->pid[r] != 0)
            continue;
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            _exit(99);
        self.rank = r;
        self.listen_fd = r == 0 ? listener : -1;
        if (r != 0)
            close(listener);
        _exit(live(&self));
    }
    close(listener);
}

/* Takes note of ranks that have ended; returns how many have not. */
static uint32_t reap(struct processes *p)
{
    uint32_t alive = 0;
    for (uint32_t r = 0; r < p->world; r++) {
        if (p->pid[r] != 0 && waitpid(p->pid[r], &p->status[r], WNOHANG) == p->pid[r])
            p->pid[r] = 0;
        alive += p->pid[r] != 0;
    }
    return alive;
}

void processes_kill(struct processes *p, uint32_t rank)
{
    if (p->pid[rank] != 0)
        kill(p->pid[rank], SIGKILL);
}

static void kill_rest(struct processes *p)
{
    for (uint32_t r = 0; r < p->world; r++) {
        processes_kill(p, r);
        if (p->pid[r] != 0 && waitpid(p->pid[r], &p->status[r], 0) != p->pid[r])
            abort();
        p->pid[r] = 0;
    }
}

uint32_t processes_wait(struct processes *p, uint32_t timeout_ms)
{
    uint32_t late;
    for (uint32_t ms = 0; reap(p) != 0 && ms < timeout_ms; ms++)
        processes_sleep_us(1000);
    late = reap(p);
    kill_rest(p);
    return late;
}

void processes_end(struct processes *p)
{
    kill_rest(p);
    munmap(p->shared, p->shared_bytes);
}

int processes_returned(const struct processes *p, uint32_t rank, int code)
{
    return WIFEXITED(p->status[rank]) && WEXITSTATUS(p->status[rank]) == code;
}

/* ---- a rank */

/* What job.c fills in for ranks of one process. */
static int fill_reference(struct job *job, uint32_t rank)
{
    const struct afd_buffer_config *c = &job->config[rank];
    struct afd_buffer_info info;
    int rc = afd_buffer_info(job->buffer[rank], &info);
    if (rc != 0)
        return rc;
    job->placement = job_need(malloc(c->experts * sizeof(*job->placement)));
    if (c->placement != NULL)
        memcpy(job->placement, c->placement, c->experts * sizeof(*job->placement));
    else
        afd_reference_placement(c->experts, job->ffn_ranks, job->placement);
    job->ref.sources = job->sources;
    job->ref.ffn_ranks = job->ffn_ranks;
    job->ref.capacity = c->capacity;
    job->ref.hidden = c->hidden;
    job->ref.experts = c->experts;
    job->ref.topk = c->topk;
    job->ref.payload_bytes = info.payload_bytes;
    job->ref.scale_bytes = info.scale_bytes;
    job->ref.placement = job->placement;
    for (uint32_t f = 0; f < job->ffn_ranks; f++)
        job->totals[f] = job_need(calloc(c->experts, sizeof(*job->totals[f])));
    return 0;
}

int processes_open(struct processes_self *self, struct job *job)
{
    struct afd_group_config config = job->group_config;
    int rc;
    config.bootstrap = AFD_BOOTSTRAP_TCP;
    config.rank = self->rank;
    config.rendezvous = self->rendezvous;
    config.listen_fd = self->listen_fd;
    self->listen_fd = -1;
    rc = afd_group_create(&config, &job->group[self->rank]);
    if (rc == 0)
        rc = afd_buffer_create(job->group[self->rank], &job->config[self->rank],
                               &job->buffer[self->rank]);
    return rc != 0 ? rc : fill_reference(job, self->rank);
}

uint32_t processes_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t count = 0;
    if (dir == NULL)
        abort();
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count - 1; /* without that of the folder */
}

uint32_t processes_windows(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uint32_t count = 0;
    if (maps == NULL)
        abort();
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "/memfd:afd-window") != NULL;
    fclose(maps);
    return count;
}
