/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.c - the bootstrap of ranks on any hosts: a star of authenticated connections through rank 0.
 * The connections stay open after the opening: that one of them breaks tells that a rank is gone.
 */
#include "bootstrap/tcp.h"
#include "bootstrap/deadline.h"
#include "error.h"

#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A record in the middle of another would be read as its body, so a peer that is being sent one
 * learns from the closed connection only. */
static void tell_peers(struct afd_tcp *tcp)
{
    uint8_t bytes[AFD_WIRE_RECORD_BYTES + 4 + AFD_WIRE_TEXT_BYTES_MAX];
    size_t text_bytes = strlen(tcp->failure);
    struct afd_wire_record record = {.magic = AFD_WIRE_ERROR,
                                     .sequence = tcp->sequence,
                                     .rank = tcp->base.rank,
                                     .bytes = (uint32_t)(4 + text_bytes)};

    afd_wire_record_encode(&record, bytes);
    afd_wire_put_u32(bytes + AFD_WIRE_RECORD_BYTES, (uint32_t)tcp->code);
    memcpy(bytes + AFD_WIRE_RECORD_BYTES + 4, tcp->failure, text_bytes);
    for (uint32_t i = 0; i < tcp->peer_count; i++) {
        struct afd_tcp_peer *peer = &tcp->peers[i];

        if (peer->fd >= 0 && peer->unsent == 0)
            (void)afd_socket_send(peer->fd, bytes, AFD_WIRE_RECORD_BYTES + 4 + text_bytes);
    }
}

int afd_tcp_fail(struct afd_tcp *tcp, int code, const char *format, ...)
{
    va_list arguments;

    if (!tcp->code) {
        tcp->code = code;
        va_start(arguments, format);
        vsnprintf(tcp->failure, sizeof(tcp->failure), format, arguments);
        va_end(arguments);
        tell_peers(tcp);
    }
    return afd_error_set(tcp->code, "%s", tcp->failure);
}

static bool code_is_known(int code)
{
#define CODE_IS_KNOWN(name, value, text) || code == (value)
    return false AFD_ERROR_LIST(CODE_IS_KNOWN);
#undef CODE_IS_KNOWN
}

int afd_tcp_fail_as_told(struct afd_tcp *tcp, uint32_t index)
{
    struct afd_tcp_peer *peer = &tcp->peers[index];
    const struct afd_tcp_reader *reader = &peer->reader;
    int code = (int)afd_wire_get_u32(reader->error);
    size_t text_bytes = reader->record.bytes - 4;
    char text[AFD_WIRE_TEXT_BYTES_MAX + 1];

    for (size_t i = 0; i < text_bytes; i++) {
        uint8_t letter = reader->error[4 + i];

        /* It ends up in somebody's terminal. */
        text[i] = letter < 0x20 || letter == 0x7f ? '?' : (char)letter;
    }
    text[text_bytes] = '\0';
    /* It knows already. */
    afd_socket_close(peer->fd);
    peer->fd = -1;
    return afd_tcp_fail(tcp, code_is_known(code) ? code : AFD_EPROTO, "%s", text);
}

static void tcp_close(struct afd_bootstrap *bootstrap)
{
    struct afd_tcp *tcp = (struct afd_tcp *)bootstrap;

    for (uint32_t i = 0; i < tcp->peer_count; i++)
        afd_socket_close(tcp->peers[i].fd);
    free(tcp->polls);
    free(tcp->peers);
    free(tcp);
}

static const struct afd_bootstrap_ops tcp_ops = {
    .allgather = afd_tcp_allgather,
    .close = tcp_close,
};

static int tcp_alloc(const struct afd_group_config *config, struct afd_tcp **tcp_out)
{
    uint32_t peer_count = config->rank == 0 ? config->world : 1;
    struct afd_tcp *tcp = calloc(1, sizeof(*tcp));

    if (!tcp)
        goto err_none;
    tcp->peers = calloc(peer_count, sizeof(*tcp->peers));
    if (!tcp->peers)
        goto err_tcp;
    tcp->polls = calloc(peer_count, sizeof(*tcp->polls));
    if (!tcp->polls)
        goto err_peers;
    tcp->peer_count = peer_count;
    for (uint32_t i = 0; i < peer_count; i++)
        tcp->peers[i].fd = -1;
    tcp->base.ops = &tcp_ops;
    tcp->base.rank = config->rank;
    tcp->base.world = config->world;
    tcp->base.timeout_us = config->bootstrap_timeout_us;
    tcp->deadline_us = afd_deadline_after(config->bootstrap_timeout_us);
    *tcp_out = tcp;
    return 0;

err_peers:
    free(tcp->peers);
err_tcp:
    free(tcp);
err_none:
    return afd_error_set(AFD_ENOMEM, "rank %u: no memory for the bootstrap of %u ranks",
                         config->rank, config->world);
}

static int rendezvous_set(struct afd_tcp *tcp, const struct afd_group_config *config)
{
    int error;

    if (tcp->base.rank == 0 && config->listen_fd >= 0)
        return 0;
    if (!config->rendezvous)
        return afd_error_set(AFD_EINVAL,
                             "rank %u: rendezvous is NULL, must be the \"host:port\" of rank 0",
                             config->rank);
    error = afd_address_parse(config->rendezvous, &tcp->rendezvous);
    if (!error)
        snprintf(tcp->rendezvous_text, sizeof(tcp->rendezvous_text), "%s", config->rendezvous);
    return error;
}

static int key_set(struct afd_tcp *tcp, const struct afd_group_config *config)
{
    const char *key = config->key ? config->key : getenv("AFD_KEY");

    if (sodium_init() < 0)
        return afd_error_set(AFD_ESYSTEM, "rank %u: libsodium finds no source of random numbers",
                             config->rank);
    afd_wire_key_derive(key ? key : "", tcp->key);
    return 0;
}

static int tcp_join(struct afd_tcp *tcp, const struct afd_group_config *config, int *listen_fd)
{
    int error = rendezvous_set(tcp, config);

    if (!error)
        error = key_set(tcp, config);
    if (error || tcp->base.world == 1)
        return error;
    if (tcp->base.rank != 0)
        return afd_tcp_client_join(tcp);
    error = afd_tcp_server_join(tcp, *listen_fd);
    *listen_fd = -1;
    return error;
}

int afd_bootstrap_tcp_open(const struct afd_group_config *config, struct afd_bootstrap **out)
{
    int listen_fd = config->rank == 0 ? config->listen_fd : -1;
    struct afd_tcp *tcp = NULL;
    int error = afd_bootstrap_check(config);

    if (!error)
        error = tcp_alloc(config, &tcp);
    if (error)
        goto err_listen;
    error = tcp_join(tcp, config, &listen_fd);
    sodium_memzero(tcp->key, sizeof(tcp->key));
    if (error)
        goto err_tcp;
    if (listen_fd >= 0)
        close(listen_fd);
    *out = &tcp->base;
    return 0;

err_tcp:
    tcp_close(&tcp->base);
err_listen:
    if (listen_fd >= 0)
        close(listen_fd);
    return error;
}
