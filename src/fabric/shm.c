/* SPDX-License-Identifier: Apache-2.0 */
/* shm.c - windows that ranks of one host can load and store. */

#include "fabric/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

/* A window mapped into this process, used by one or more ranks of it. */
struct mapping {
    struct mapping *next;
    uint64_t nonce;
    uint8_t *base;
    uint64_t bytes;
    uint32_t uses;
};

static struct mapping *mappings;
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t afd_pid_namespace(void)
{
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

int afd_random(void *out, uint64_t bytes)
{
    if (getrandom(out, bytes, 0) == (ssize_t)bytes)
        return 0;
    return afd_error_set(AFD_ESYSTEM, "getrandom of %llu bytes: %s", (unsigned long long)bytes,
                         strerror(errno));
}

/* With the lock held. */
static struct mapping *find_mapping(uint64_t nonce)
{
    struct mapping *m = mappings;
    while (m != NULL && m->nonce != nonce)
        m = m->next;
    return m;
}

/* Maps fd and puts it on the list, used once. With the lock held. */
static int add_mapping(int fd, uint64_t bytes, uint64_t nonce, struct mapping **mapping_out)
{
    struct mapping *m = malloc(sizeof(*m));
    void *base;
    if (m == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for a window record");
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        free(m);
        return afd_error_set(AFD_ENOMEM, "mapping a window of %llu bytes: %s",
                             (unsigned long long)bytes, strerror(errno));
    }
    m->nonce = nonce;
    m->base = base;
    m->bytes = bytes;
    m->uses = 1;
    m->next = mappings;
    mappings = m;
    *mapping_out = m;
    return 0;
}

static int create_file(uint64_t bytes, int *fd_out)
{
    int fd = memfd_create("afd-window", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return afd_error_set(AFD_ESYSTEM, "memfd_create: %s", strerror(errno));
    if (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        int rc = afd_error_set(AFD_ENOMEM, "a window of %llu bytes: %s", (unsigned long long)bytes,
                               strerror(errno));
        close(fd);
        return rc;
    }
    *fd_out = fd;
    return 0;
}

int afd_window_create(uint64_t bytes, struct afd_window *window_out,
                      struct afd_window_ticket *ticket_out)
{
    struct mapping *m = NULL;
    uint64_t nonce;
    int fd = -1;
    int rc = afd_random(&nonce, sizeof(nonce));
    if (rc == 0)
        rc = create_file(bytes, &fd);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&mappings_lock);
    rc = add_mapping(fd, bytes, nonce, &m);
    pthread_mutex_unlock(&mappings_lock);
    if (rc != 0) {
        close(fd);
        return rc;
    }
    window_out->base = m->base;
    window_out->bytes = bytes;
    window_out->nonce = nonce;
    memset(ticket_out, 0, sizeof(*ticket_out));
    ticket_out->nonce = nonce;
    ticket_out->bytes = bytes;
    ticket_out->pid = (int32_t)getpid();
    ticket_out->fd = fd;
    ticket_out->pid_namespace = afd_pid_namespace();
    return 0;
}

static int open_file(const struct afd_window_ticket *ticket, uint32_t rank, int *fd_out)
{
    char path[64];
    struct stat info;
    int fd = -1;
    if (ticket->pid_namespace != afd_pid_namespace())
        return afd_error_set(AFD_EUNSUPPORTED,
                             "rank %u runs in PID namespace %llu, this rank in %llu; ranks of one "
                             "domain must share one",
                             rank, (unsigned long long)ticket->pid_namespace,
                             (unsigned long long)afd_pid_namespace());
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket->pid, ticket->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return afd_error_set(errno == ENOENT ? AFD_EPEER : AFD_ESYSTEM,
                             "opening the window of rank %u (process %d): %s", rank, ticket->pid,
                             strerror(errno));
    if (fstat(fd, &info) != 0 || (uint64_t)info.st_size != ticket->bytes) {
        close(fd);
        return afd_error_set(AFD_EPEER,
                             "the window of rank %u is not the one it announced (%llu "
                             "bytes)",
                             rank, (unsigned long long)ticket->bytes);
    }
    *fd_out = fd;
    return 0;
}

int afd_window_open(const struct afd_window_ticket *ticket, uint32_t rank,
                    struct afd_window *window_out)
{
    struct mapping *m;
    int fd = -1;
    int rc = 0;
    pthread_mutex_lock(&mappings_lock);
    m = find_mapping(ticket->nonce);
    if (m != NULL) {
        m->uses++;
    } else {
        rc = open_file(ticket, rank, &fd);
        if (rc == 0) {
            rc = add_mapping(fd, ticket->bytes, ticket->nonce, &m);
            close(fd);
        }
    }
    if (rc == 0) {
        window_out->base = m->base;
        window_out->bytes = m->bytes;
        window_out->nonce = m->nonce;
    }
    pthread_mutex_unlock(&mappings_lock);
    return rc;
}

void afd_window_publish_end(const struct afd_window_ticket *ticket)
{
    close(ticket->fd);
}

void afd_window_close(struct afd_window *window)
{
    struct mapping **link = &mappings;
    struct mapping *m;
    if (window->base == NULL)
        return;
    pthread_mutex_lock(&mappings_lock);
    while (*link != NULL && (*link)->nonce != window->nonce)
        link = &(*link)->next;
    m = *link;
    AFD_ASSERT(m != NULL);
    if (--m->uses == 0) {
        *link = m->next;
        munmap(m->base, m->bytes);
        free(m);
    }
    pthread_mutex_unlock(&mappings_lock);
    window->base = NULL;
}
