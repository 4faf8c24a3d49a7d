/* SPDX-License-Identifier: Apache-2.0 */
/* stop.c - SIGINT and SIGTERM become aborts of groups. */

#include "stop.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static struct afd_group *groups[CLI_WORLD_MAX]; /* atomic pointers */
static uint32_t stopping;                       /* atomic: handlers that look at groups now */
static int first_signal;                        /* atomic */

void cli_stop_note(int signal_number)
{
    int none = 0;
    (void)__atomic_compare_exchange_n(&first_signal, &none, signal_number, 0, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED);
}

int cli_stop_signal(void)
{
    return __atomic_load_n(&first_signal, __ATOMIC_RELAXED);
}

static void on_signal(int signal_number)
{
    uint32_t watched = 0;
    cli_stop_note(signal_number);
    __atomic_add_fetch(&stopping, 1, __ATOMIC_SEQ_CST); /* pairs with cli_stop_forget() */
    for (uint32_t r = 0; r < CLI_WORLD_MAX; r++) {
        struct afd_group *group = __atomic_load_n(&groups[r], __ATOMIC_SEQ_CST);
        if (group != NULL) {
            afd_group_abort(group);
            watched++;
        }
    }
    __atomic_sub_fetch(&stopping, 1, __ATOMIC_SEQ_CST);
    if (watched == 0)
        _exit(CLI_FAILED);
}

void cli_stop_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void cli_stop_watch(uint32_t rank, struct afd_group *group)
{
    __atomic_store_n(&groups[rank], group, __ATOMIC_SEQ_CST);
}

void cli_stop_forget(uint32_t rank)
{
    __atomic_store_n(&groups[rank], NULL, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&stopping, __ATOMIC_SEQ_CST) != 0) /* pairs with on_signal() */
        sched_yield();
}
