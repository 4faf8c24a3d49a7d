/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_socket.h - non-blocking sockets and addresses; knows nothing of ranks or of the protocol.
 */
#ifndef AFD_BOOTSTRAP_TCP_SOCKET_H
#define AFD_BOOTSTRAP_TCP_SOCKET_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define AFD_ADDRESS_HOST_BYTES 256u
#define AFD_ADDRESS_TEXT_BYTES 80u /* "[v6%scope]:port" of a socket */

/* "host:port" taken apart: host without brackets. */
struct afd_address {
    char host[AFD_ADDRESS_HOST_BYTES];
    char port[6];
};

/* AFD_EINVAL with a sentence if `text` is not host:port or [v6]:port with a port of 1 .. 65535. */
int afd_address_parse(const char *text, struct afd_address *address_out);
/* getaddrinfo's result code; the caller frees the list. Can block as long as the resolver does. */
int afd_address_resolve(const struct afd_address *address, bool listen, struct addrinfo **list_out);
/* The far (peer) or near end of a socket as "127.0.0.1:7777", or "an unknown address". */
void afd_socket_name(int fd, bool peer, char text_out[AFD_ADDRESS_TEXT_BYTES]);

/* These return 0 or an errno value. */
int afd_socket_listen(const struct addrinfo *where, int *fd_out);
int afd_socket_connect(const struct addrinfo *where, uint64_t deadline_us, int *fd_out);
/* EAGAIN: nobody is there to be accepted. */
int afd_socket_accept(int listen_fd, int *fd_out);
/* Makes a socket that the caller opened like ours; EINVAL if it does not listen. */
int afd_socket_adopt_listener(int fd);

/* Bytes moved, 0 if none can move now, -1 if the connection is closed or broken. bytes > 0. */
ssize_t afd_socket_send(int fd, const void *data, size_t bytes);
ssize_t afd_socket_receive(int fd, void *data, size_t bytes);

enum afd_socket_result {
    AFD_SOCKET_DONE,
    AFD_SOCKET_CLOSED,
    AFD_SOCKET_LATE,
};

/* Wait until everything has moved. */
enum afd_socket_result afd_socket_send_all(int fd, const void *data, size_t bytes,
                                           uint64_t deadline_us);
enum afd_socket_result afd_socket_receive_all(int fd, void *data, size_t bytes,
                                              uint64_t deadline_us);

/* Closes without waiting, and so that what was sent last still arrives. -1 is allowed. */
void afd_socket_close(int fd);

#endif
