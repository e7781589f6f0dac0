// A mock engine: one thread, epoll, several ports, no work per request.
//
//   mock PORTS EVENTS DELAY_US
//
// PORTS are separated by commas. A streamed answer has as many events as the request's max_tokens
// (EVENTS when it names none), one chunk each, DELAY_US apart. Any other POST gets a whole answer.
// GETs answer what routers ask an engine before they use it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "answers.h"

typedef struct connection {
    int fd;
    int listening, dead;
    int streaming;            // an answer is being streamed: event `event` of `events` is next
    int event, events;
    int scheduled;            // in the timer queue
    uint64_t due;             // ns, when the next event goes
    struct connection *next;  // in the timer queue
    char *in, *out;           // bytes not parsed yet, bytes not sent yet
    size_t in_size, in_room, out_size, out_room;
} connection;

static int poller, default_events;
static uint64_t delay_ns;
// Every delay is the same, so the queue is in order of due time by construction.
static connection *queue_head, *queue_tail;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void watch(connection *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(poller, operation, c->fd, &event);
}

static void schedule(connection *c) {
    c->due = now_ns() + delay_ns;
    c->scheduled = 1;
    c->next = NULL;
    if (queue_tail) queue_tail->next = c;
    else queue_head = c;
    queue_tail = c;
}

static void release(connection *c) {
    free(c->in);
    free(c->out);
    free(c);
}

static void hang_up(connection *c) {
    if (c->dead) return;
    c->dead = 1;
    close(c->fd);
    if (!c->scheduled) release(c);  // else when its turn in the queue comes
}

static void put(connection *c, const char *bytes, size_t size) {
    if (!c->out_size) {
        ssize_t sent = send(c->fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) return;  // the read side will see the connection's end
            sent = 0;
        }
        bytes += sent;
        size -= (size_t)sent;
    }
    if (!size) return;
    if (c->out_size + size > c->out_room) {
        c->out_room = (c->out_size + size) * 2;
        c->out = realloc(c->out, c->out_room);
    }
    memcpy(c->out + c->out_size, bytes, size);
    c->out_size += size;
    watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
}

static void flush_out(connection *c) {
    ssize_t sent = send(c->fd, c->out, c->out_size, MSG_NOSIGNAL);
    if (sent > 0) {
        memmove(c->out, c->out + sent, c->out_size - (size_t)sent);
        c->out_size -= (size_t)sent;
    }
    if (!c->out_size) watch(c, EPOLL_CTL_MOD, EPOLLIN);
}

static void put_whole(connection *c, const char *type, const char *body) {
    char answer[4096];
    int size = snprintf(answer, sizeof answer,
                        "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2026 00:00:00 GMT\r\nserver: mock\r\n"
                        "content-length: %zu\r\ncontent-type: %s\r\n\r\n%s",
                        strlen(body), type, body);
    put(c, answer, (size_t)size);
}

static void put_event(connection *c) {
    char event[EVENT_MAX], chunk[EVENT_MAX + 32];
    size_t size = event_text(event, c->event, c->events);
    int head = sprintf(chunk, "%zx\r\n", size);
    memcpy(chunk + head, event, size);
    char *end = chunk + head + size;
    c->event++;
    c->streaming = c->event < c->events;
    end = stpcpy(end, c->streaming ? "\r\n" : "\r\n0\r\n\r\n");
    put(c, chunk, (size_t)(end - chunk));
}

static int starts(const char *text, const char *with) {
    return !strncmp(text, with, strlen(with));
}

static void answer_get(connection *c, const char *request) {
    static const char json[] = "application/json";
    if (starts(request, "GET /v1/models"))
        put_whole(c, json,
                  "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\","
                  "\"created\":1700000000,\"owned_by\":\"vllm\",\"root\":\"m\",\"parent\":null,"
                  "\"max_model_len\":131072}]}");
    else if (starts(request, "GET /metrics"))
        put_whole(c, "text/plain; version=0.0.4",
                  "# TYPE vllm:num_requests_running gauge\n"
                  "vllm:num_requests_running{model_name=\"m\"} 1.0\n"
                  "# TYPE vllm:num_requests_waiting gauge\n"
                  "vllm:num_requests_waiting{model_name=\"m\"} 0.0\n"
                  "# TYPE vllm:kv_cache_usage_perc gauge\n"
                  "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.1\n");
    else if (starts(request, "GET /version"))
        put_whole(c, json, "{\"version\":\"0.33.0\"}");
    else if (memmem(request, 40, "info", 4))  // SGLang's /get_server_info, /get_model_info
        put_whole(c, json,
                  "{\"model_id\":\"m\",\"model_path\":\"m\",\"served_model_name\":\"m\","
                  "\"tokenizer_path\":\"m\",\"is_generation\":true,\"version\":\"0.5\","
                  "\"dp_size\":1,\"tp_size\":1}");
    else
        put_whole(c, json, "{\"status\":\"ok\"}");
}

static void answer_post(connection *c, const char *body, size_t size) {
    int stream = memmem(body, size, "\"stream\":true", 13) || memmem(body, size, "\"stream\": true", 14);
    if (!stream) {
        put_whole(c, "application/json", WHOLE_ANSWER);
        return;
    }
    const char *cap = memmem(body, size, "\"max_tokens\":", 13);
    if (!cap) cap = memmem(body, size, "\"max_completion_tokens\":", 24);
    c->events = cap ? atoi(strchr(cap, ':') + 1) : default_events;
    if (c->events < 1) c->events = 1;
    c->event = 0;
    c->streaming = 1;
    static const char head[] =
        "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2026 00:00:00 GMT\r\nserver: mock\r\n"
        "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    put(c, head, sizeof head - 1);
    if (delay_ns) schedule(c);
    else while (c->streaming) put_event(c);
}

// Size of the first whole request in the buffer, 0 when it is not whole yet; where its body is.
static size_t whole_request(connection *c, size_t *body_at, size_t *body_size) {
    char *end = memmem(c->in, c->in_size, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t at = (size_t)(end + 4 - c->in), length = 0;
    int chunked = 0;
    for (char *line = c->in; line < end; line = strchr(line, '\n') + 1) {
        if (!strncasecmp(line, "content-length:", 15)) length = strtoul(line + 15, NULL, 10);
        if (!strncasecmp(line, "transfer-encoding:", 18)) chunked = 1;
    }
    if (chunked) {  // the fields are found in the raw chunks too: routers send the body as one
        static const char last[] = "0\r\n\r\n";
        char *found = c->in_size >= at + 5 && !memcmp(c->in + at, last, 5)
                          ? c->in + at - 2
                          : memmem(c->in + at, c->in_size - at, "\r\n0\r\n\r\n", 7);
        if (!found) return 0;
        length = (size_t)(found + 7 - c->in) - at;
    } else if (c->in_size < at + length) {
        return 0;
    }
    *body_at = at;
    *body_size = length;
    return at + length;
}

// Answer what is in the buffer, up to a streamed answer, which must end before the next.
static void process(connection *c) {
    size_t body_at, body_size, used;
    while (!c->streaming && !c->dead && (used = whole_request(c, &body_at, &body_size))) {
        if (starts(c->in, "POST ")) answer_post(c, c->in + body_at, body_size);
        else answer_get(c, c->in);
        memmove(c->in, c->in + used, c->in_size - used + 1);  // with the terminating NUL
        c->in_size -= used;
    }
}

static void accept_all(connection *listener) {
    int fd;
    while ((fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->in_room = 8192;
        c->in = malloc(c->in_room);
        watch(c, EPOLL_CTL_ADD, EPOLLIN);
    }
}

static void read_all(connection *c) {
    for (;;) {
        if (c->in_room - c->in_size < 4096 + 1) {
            c->in_room *= 2;
            c->in = realloc(c->in, c->in_room);
        }
        size_t room = c->in_room - c->in_size - 1;
        ssize_t got = recv(c->fd, c->in + c->in_size, room, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            hang_up(c);
            return;
        }
        if (got < 0) break;
        c->in_size += (size_t)got;
        c->in[c->in_size] = 0;
        if ((size_t)got < room) break;
    }
    process(c);
}

static void run_due(void) {
    uint64_t now = now_ns();
    while (queue_head && queue_head->due <= now) {
        connection *c = queue_head;
        queue_head = c->next;
        if (!queue_head) queue_tail = NULL;
        c->scheduled = 0;
        if (c->dead) {
            release(c);
            continue;
        }
        put_event(c);
        if (c->streaming) schedule(c);
        else process(c);
    }
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) return -1;
    connection *c = calloc(1, sizeof *c);
    c->fd = fd;
    c->listening = 1;
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
    return 0;
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: mock PORTS EVENTS DELAY_US\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    default_events = atoi(arguments[2]);
    delay_ns = strtoull(arguments[3], NULL, 10) * 1000;
    poller = epoll_create1(0);
    for (char *port = strtok(arguments[1], ","); port; port = strtok(NULL, ",")) {
        if (listen_on(atoi(port))) {
            perror("mock: listen");
            return 1;
        }
    }
    struct epoll_event events[512];
    for (;;) {
        struct timespec wait, *limit = NULL;
        if (queue_head) {
            uint64_t now = now_ns(), left = queue_head->due > now ? queue_head->due - now : 0;
            wait.tv_sec = (time_t)(left / 1000000000);
            wait.tv_nsec = (long)(left % 1000000000);
            limit = &wait;
        }
        int ready = epoll_pwait2(poller, events, 512, limit, NULL);
        for (int i = 0; i < ready; i++) {
            connection *c = events[i].data.ptr;
            if (c->listening) {
                accept_all(c);
                continue;
            }
            if (events[i].events & EPOLLOUT) flush_out(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_all(c);
        }
        run_due();
    }
}
