/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_record.c - reads records that arrive in pieces.
 */
#include "bootstrap/tcp.h"

/* AFD_TCP_RECORD: `bytes` are there. */
static enum afd_tcp_event fill(int fd, uint8_t *data, size_t bytes, size_t *done)
{
    while (*done < bytes) {
        ssize_t now = afd_socket_receive(fd, data + *done, bytes - *done);

        if (now < 0)
            return AFD_TCP_CLOSED;
        if (now == 0)
            return AFD_TCP_NOTHING;
        *done += (size_t)now;
    }
    return AFD_TCP_RECORD;
}

static enum afd_tcp_event read_header(int fd, struct afd_tcp_reader *reader)
{
    size_t done = reader->header_done;
    enum afd_tcp_event event = fill(fd, reader->header, sizeof(reader->header), &done);

    reader->header_done = (uint32_t)done;
    if (event != AFD_TCP_RECORD)
        return event;
    afd_wire_record_decode(reader->header, &reader->record);
    reader->body_done = 0;
    reader->body_bytes = 0;
    if (reader->record.magic != AFD_WIRE_ERROR)
        return AFD_TCP_HEADER;
    if (reader->record.bytes < 4 || reader->record.bytes > sizeof(reader->error))
        return AFD_TCP_BROKEN;
    reader->body = reader->error;
    reader->body_bytes = reader->record.bytes;
    return AFD_TCP_RECORD;
}

enum afd_tcp_event afd_tcp_read(int fd, struct afd_tcp_reader *reader)
{
    enum afd_tcp_event event;

    if (reader->header_done < sizeof(reader->header)) {
        event = read_header(fd, reader);
        if (event != AFD_TCP_RECORD)
            return event;
    }
    event = fill(fd, reader->body, reader->body_bytes, &reader->body_done);
    if (event == AFD_TCP_RECORD)
        reader->header_done = 0;
    return event;
}
