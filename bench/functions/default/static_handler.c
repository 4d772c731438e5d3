// The handler of `bench-default` with the least work: one thread, level-triggered epoll, the body
// of a request as response. Usage: static-handler PORT [ADDRESS]; without ADDRESS it is 127.0.0.1.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_FDS 65536
#define BUFFER_BYTES 8192

static char *buffers[MAX_FDS];
static int lengths[MAX_FDS];

static int listen_on(const char *address, int port) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons(port),
                               .sin_addr.s_addr = inet_addr(address)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&addr, sizeof addr) || listen(fd, 4096)) {
        perror("static-handler");
        exit(1);
    }
    return fd;
}

static void accept_all(int epoll, int listener) {
    int one = 1, fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (fd >= MAX_FDS) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
        if (!buffers[fd])
            buffers[fd] = malloc(BUFFER_BYTES + 1);
        lengths[fd] = 0;
    }
}

static long field_number(const char *head, const char *name) {
    const char *field = strcasestr(head, name);
    return field ? atol(field + strlen(name)) : 0;
}

// Decodes a chunked body (RFC 9112, section 7.1), which of-watchdog always sends, into `out`; returns
// its length with chunk sizes, or 0 while it is incomplete.
static long decode_chunks(const char *body, const char *end, char *out, long *length) {
    const char *at = body, *line;
    for (*length = 0; (line = memmem(at, end - at, "\r\n", 2)); at = line + 2) {
        long size = strtol(at, NULL, 16);
        const char *data = line + 2;
        if (size < 0 || size > end - data - 2)
            return 0;
        memcpy(out + *length, data, size);
        *length += size;
        line = data + size; // the line end behind the chunk
        if (size == 0)
            return line + 2 - body; // without trailers, which no peer sends
    }
    return 0;
}

// Answers a complete request; returns the length of it, or 0 while it is incomplete.
static int answer(int fd, int *closes) {
    char *buffer = buffers[fd], out[BUFFER_BYTES + 256], decoded[BUFFER_BYTES], *body, *content;
    buffer[lengths[fd]] = 0;
    if (!(body = strstr(buffer, "\r\n\r\n")))
        return 0;
    content = body += 4;
    char last = *body;
    *body = 0;
    long length = field_number(buffer, "\r\ncontent-length:"), taken = length;
    int chunked = strcasestr(buffer, "\r\ntransfer-encoding: chunked") != NULL;
    *closes = strcasestr(buffer, "\r\nconnection: close") != NULL;
    *body = last;
    if (chunked) {
        if (!(taken = decode_chunks(body, buffer + lengths[fd], decoded, &length)))
            return 0;
        content = decoded;
    } else if (lengths[fd] < body - buffer + length)
        return 0;
    int head = sprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %ld\r\n\r\n", length);
    memcpy(out + head, content, length);
    send(fd, out, head + length, MSG_NOSIGNAL);
    return body - buffer + taken;
}

static void serve(int fd) {
    int taken, closes = 0, got = recv(fd, buffers[fd] + lengths[fd], BUFFER_BYTES - lengths[fd], 0);
    if (got <= 0) {
        close(fd);
        return;
    }
    lengths[fd] += got;
    while (lengths[fd] > 0 && (taken = answer(fd, &closes)) > 0) {
        if (closes) {
            close(fd);
            return;
        }
        lengths[fd] -= taken;
        memmove(buffers[fd], buffers[fd] + taken, lengths[fd]);
    }
}

int main(int count, char **arguments) {
    if (count != 2 && count != 3) {
        fprintf(stderr, "usage: static-handler PORT [ADDRESS]\n");
        return 2;
    }
    int listener = listen_on(count == 3 ? arguments[2] : "127.0.0.1", atoi(arguments[1]));
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd == listener)
                accept_all(epoll, listener);
            else
                serve(events[i].data.fd);
        }
    }
}
