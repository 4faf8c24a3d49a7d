/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_socket.c - non-blocking sockets and addresses.
 */
#include "bootstrap/tcp_socket.h"
#include "bootstrap/deadline.h"
#include "error.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTEN_BACKLOG 1024

static int address_refuse(const char *text, const char *why)
{
    return afd_error_set(
        AFD_EINVAL, "rendezvous \"%.128s\" %s: write host:port or [v6 address]:port", text, why);
}

int afd_address_parse(const char *text, struct afd_address *address_out)
{
    struct afd_address address = {.host = "", .port = ""};
    bool bracket = text[0] == '[';
    const char *host = bracket ? text + 1 : text;
    const char *host_end = bracket ? strchr(text, ']') : strrchr(text, ':');
    const char *port;
    size_t digits;

    if (!host_end || (bracket && host_end[1] != ':'))
        return address_refuse(text, "has no port");
    port = host_end + (bracket ? 2 : 1);
    if (host_end == host)
        return address_refuse(text, "has no host");
    if (!bracket && memchr(host, ':', (size_t)(host_end - host)))
        return address_refuse(text, "has more than one colon");
    if ((size_t)(host_end - host) >= sizeof(address.host))
        return address_refuse(text, "has a host of more than 255 characters");
    digits = strspn(port, "0123456789");
    if (digits == 0 || digits >= sizeof(address.port) || port[digits] || atoi(port) < 1 ||
        atoi(port) > 65535)
        return address_refuse(text, "has a port that is not 1 .. 65535");
    memcpy(address.host, host, (size_t)(host_end - host));
    memcpy(address.port, port, digits);
    *address_out = address;
    return 0;
}

int afd_address_resolve(const struct afd_address *address, bool listen, struct addrinfo **list_out)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (listen ? AI_PASSIVE : 0)};

    return getaddrinfo(address->host, address->port, &hints, list_out);
}

void afd_socket_name(int fd, bool peer, char text_out[AFD_ADDRESS_TEXT_BYTES])
{
    struct sockaddr_storage name = {0};
    socklen_t bytes = sizeof(name);
    struct sockaddr *at = (struct sockaddr *)&name;
    char host[64];
    char port[8];

    snprintf(text_out, AFD_ADDRESS_TEXT_BYTES, "an unknown address");
    if ((peer ? getpeername(fd, at, &bytes) : getsockname(fd, at, &bytes)) != 0 ||
        getnameinfo(at, bytes, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    snprintf(text_out, AFD_ADDRESS_TEXT_BYTES, name.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s",
             host, port);
}

static void option_set(int fd, int level, int option, int value)
{
    /* Each only improves a connection that works without it. */
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

static void options_set(int fd)
{
    option_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    option_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    option_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    option_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    option_set(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

static int socket_open(const struct addrinfo *where, int *fd_out)
{
    int fd = socket(where->ai_family, where->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                    where->ai_protocol);

    if (fd < 0)
        return errno;
    *fd_out = fd;
    return 0;
}

int afd_socket_listen(const struct addrinfo *where, int *fd_out)
{
    int fd = -1;
    int error = socket_open(where, &fd);

    if (error)
        return error;
    /* The last run's connections may still linger on a fixed port. */
    option_set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd, where->ai_addr, where->ai_addrlen) || listen(fd, LISTEN_BACKLOG)) {
        error = errno;
        close(fd);
        return error;
    }
    *fd_out = fd;
    return 0;
}

/* TCP lets a socket connect to itself when its own port was chosen to be the one that it tries. */
static bool connected_to_itself(int fd)
{
    char near[AFD_ADDRESS_TEXT_BYTES];
    char far[AFD_ADDRESS_TEXT_BYTES];

    afd_socket_name(fd, false, near);
    afd_socket_name(fd, true, far);
    return strcmp(near, far) == 0;
}

static int connect_wait(int fd, uint64_t deadline_us)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t bytes = sizeof(error);
    int ready;

    do {
        ready = poll(&wait, 1, afd_deadline_left_ms(deadline_us));
    } while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return errno;
    if (ready == 0)
        return ETIMEDOUT;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes))
        return errno;
    return error;
}

int afd_socket_connect(const struct addrinfo *where, uint64_t deadline_us, int *fd_out)
{
    int fd = -1;
    int error = socket_open(where, &fd);

    if (error)
        return error;
    options_set(fd);
    if (connect(fd, where->ai_addr, where->ai_addrlen))
        error = errno;
    /* An interrupted connect goes on by itself, as one in progress does. */
    if (error == EINPROGRESS || error == EINTR)
        error = connect_wait(fd, deadline_us);
    if (!error && connected_to_itself(fd))
        error = ECONNREFUSED;
    if (error) {
        close(fd);
        return error;
    }
    *fd_out = fd;
    return 0;
}

int afd_socket_accept(int listen_fd, int *fd_out)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0)
        return errno;
    options_set(fd);
    *fd_out = fd;
    return 0;
}

int afd_socket_adopt_listener(int fd)
{
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes))
        return errno;
    if (!listens)
        return EINVAL;
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC))
        return errno;
    return 0;
}

static ssize_t moved(ssize_t result)
{
    if (result > 0)
        return result;
    return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

ssize_t afd_socket_send(int fd, const void *data, size_t bytes)
{
    return moved(send(fd, data, bytes, MSG_NOSIGNAL));
}

ssize_t afd_socket_receive(int fd, void *data, size_t bytes)
{
    return moved(recv(fd, data, bytes, 0));
}

/* false: the deadline passed. An error of poll or of the socket shows in the call that follows. */
static bool socket_wait(int fd, short events, uint64_t deadline_us)
{
    struct pollfd wait = {.fd = fd, .events = events};

    return poll(&wait, 1, afd_deadline_left_ms(deadline_us)) != 0;
}

enum afd_socket_result afd_socket_send_all(int fd, const void *data, size_t bytes,
                                           uint64_t deadline_us)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = afd_socket_send(fd, (const uint8_t *)data + done, bytes - done);

        if (now < 0)
            return AFD_SOCKET_CLOSED;
        if (now == 0 && !socket_wait(fd, POLLOUT, deadline_us))
            return AFD_SOCKET_LATE;
        done += (size_t)now;
    }
    return AFD_SOCKET_DONE;
}

enum afd_socket_result afd_socket_receive_all(int fd, void *data, size_t bytes,
                                              uint64_t deadline_us)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = afd_socket_receive(fd, (uint8_t *)data + done, bytes - done);

        if (now < 0)
            return AFD_SOCKET_CLOSED;
        if (now == 0 && !socket_wait(fd, POLLIN, deadline_us))
            return AFD_SOCKET_LATE;
        done += (size_t)now;
    }
    return AFD_SOCKET_DONE;
}

void afd_socket_close(int fd)
{
    uint8_t waste[4096];

    if (fd < 0)
        return;
    /* Closing with unread bytes resets the connection, which may overtake a last ERROR record. */
    (void)shutdown(fd, SHUT_WR);
    for (int i = 0; i < 1024 && afd_socket_receive(fd, waste, sizeof(waste)) > 0; i++)
        continue;
    close(fd);
}
