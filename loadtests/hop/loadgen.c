// A load generator: one thread, epoll, closed loop; compares every byte of every body.
//
//   loadgen PORT CONNECTIONS MILLISECONDS EVENTS BODIES [REQUESTS]
//
// BODIES is a file with one JSON object a line; each is sent as a chat completion in turn, with
// max_tokens added, and with "stream":true when EVENTS is not 0: then answers of that many events
// are expected (see answers.h), whole ones otherwise. After MILLISECONDS, or REQUESTS if given, no
// new request is started. Prints one JSON object: counts, and latencies in milliseconds (lat: to
// the last byte; first: to the first byte of the body).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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

#define HEAD_MAX 16384
#define BODIES_MAX 16384
#define SAMPLES_MAX 4000000
#define DRAIN_NS 15000000000ull  // how long running requests may take after the end

typedef enum { HEAD, BODY } part;
typedef enum { SIZE_LINE, DATA, DATA_END, TRAILER } chunk_part;

typedef struct {
    int fd;  // -1 when closed
    uint64_t sent_at, first_at;
    const char *unsent;
    size_t unsent_size;
    part part;
    char head[HEAD_MAX];
    size_t head_size;
    int status, chunked;
    long length;  // Content-Length, -1 when there is none
    chunk_part chunk_part;
    size_t chunk_left;
    char line[32];
    int line_size;
    size_t received;
    int differs;
} connection;

static int poller, port;
static char *requests[BODIES_MAX];
static size_t request_sizes[BODIES_MAX];
static long request_count, started, request_limit = -1;
static const char *expected;
static size_t expected_size;
static uint64_t end_at;
static int active;
static long done, errors, mismatches, not_200;
static uint32_t *latencies, *firsts;  // microseconds
static size_t samples;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void watch(connection *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(poller, operation, c->fd, &event);
}

static int may_start(void) {
    return now_ns() < end_at && (request_limit < 0 || started < request_limit);
}

static void send_rest(connection *c) {
    while (c->unsent_size) {
        ssize_t sent = send(c->fd, c->unsent, c->unsent_size, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;  // any other error is seen when reading
        }
        c->unsent += sent;
        c->unsent_size -= (size_t)sent;
    }
}

static void start(connection *c) {
    long which = started++ % request_count;
    c->part = HEAD;
    c->head_size = 0;
    c->chunked = 0;
    c->length = -1;
    c->chunk_part = SIZE_LINE;
    c->line_size = 0;
    c->received = 0;
    c->differs = 0;
    c->first_at = 0;
    c->sent_at = now_ns();
    c->unsent = requests[which];
    c->unsent_size = request_sizes[which];
    send_rest(c);
}

static int dial(connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) {
        close(c->fd);
        c->fd = -1;
        return -1;
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
    return 0;
}

static void retire(connection *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    active--;
}

static void redial(connection *c) {
    close(c->fd);
    c->fd = -1;
    if (!may_start()) retire(c);
    else if (dial(c)) errors++, retire(c);
    else start(c);
}

static void finish(connection *c, int keep) {
    uint64_t now = now_ns();
    if (c->status != 200) not_200++;
    else if (c->differs || c->received != expected_size) mismatches++;
    if (samples < SAMPLES_MAX) {
        latencies[samples] = (uint32_t)((now - c->sent_at) / 1000);
        firsts[samples] = (uint32_t)((c->first_at - c->sent_at) / 1000);
        samples++;
    }
    done++;
    if (!keep) redial(c);
    else if (may_start()) start(c);
    else retire(c);
}

static void fail(connection *c) {
    if (c->part == BODY && !c->chunked && c->length < 0) {  // an answer that ends with its connection
        finish(c, 0);
        return;
    }
    errors++;
    if (errors < 1000) redial(c);
    else retire(c);
}

static void body(connection *c, const char *bytes, size_t size) {
    if (!c->first_at) c->first_at = now_ns();
    if (c->received + size > expected_size || memcmp(expected + c->received, bytes, size))
        c->differs = 1;
    c->received += size;
}

// Takes bytes of the head; how many it took.
static size_t feed_head(connection *c, const char *bytes, size_t size) {
    size_t before = c->head_size, room = HEAD_MAX - 1 - before, taken = size < room ? size : room;
    memcpy(c->head + before, bytes, taken);
    c->head_size += taken;
    c->head[c->head_size] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end) return taken;
    c->status = atoi(c->head + 9);
    for (char *line = c->head; line < end; line = strstr(line, "\r\n") + 2) {
        if (!strncasecmp(line, "content-length:", 15)) c->length = atol(line + 15);
        if (!strncasecmp(line, "transfer-encoding: chunked", 26)) c->chunked = 1;
    }
    c->part = BODY;
    return (size_t)(end + 4 - c->head) - before;
}

// Takes bytes of a chunked body; how many it took. Sets *whole at the body's end.
static size_t feed_chunked(connection *c, const char *bytes, size_t size, int *whole) {
    if (c->chunk_part == DATA) {
        size_t taken = size < c->chunk_left ? size : c->chunk_left;
        body(c, bytes, taken);
        c->chunk_left -= taken;
        if (!c->chunk_left) c->chunk_part = DATA_END;
        return taken;
    }
    char byte = *bytes;
    if (c->chunk_part == DATA_END) {
        if (byte == '\n') c->chunk_part = SIZE_LINE;
    } else if (byte != '\n') {
        if (byte != '\r' && c->line_size < (int)sizeof c->line - 1) c->line[c->line_size++] = byte;
    } else {
        c->line[c->line_size] = 0;
        if (c->chunk_part == TRAILER) {
            *whole = c->line_size == 0;
        } else {
            c->chunk_left = strtoul(c->line, NULL, 16);
            c->chunk_part = c->chunk_left ? DATA : TRAILER;
        }
        c->line_size = 0;
    }
    return 1;
}

static void feed(connection *c, const char *bytes, size_t size) {
    while (size) {
        size_t taken;
        int whole = 0;
        if (c->part == HEAD) {
            taken = feed_head(c, bytes, size);
            if (!taken) {  // a head that does not fit
                fail(c);
                return;
            }
            whole = c->part == BODY && !c->chunked && c->length == 0;
        } else if (c->chunked) {
            taken = feed_chunked(c, bytes, size, &whole);
        } else {
            size_t left = c->length < 0 ? size : (size_t)c->length - c->received;
            taken = size < left ? size : left;
            body(c, bytes, taken);
            whole = c->length >= 0 && c->received >= (size_t)c->length;
        }
        if (whole) {
            finish(c, 1);
            return;
        }
        bytes += taken;
        size -= taken;
    }
}

static int load_bodies(const char *file, int events) {
    FILE *lines = fopen(file, "r");
    if (!lines) return -1;
    char *line = NULL, tail[64];
    size_t room = 0;
    ssize_t size;
    int tail_size = events ? sprintf(tail, ",\"max_tokens\":%d,\"stream\":true}", events)
                           : sprintf(tail, ",\"max_tokens\":100}");
    while (request_count < BODIES_MAX && (size = getline(&line, &room, lines)) > 0) {
        if (line[size - 1] == '\n') size--;
        size_t object = (size_t)size - 1;  // without its closing brace
        char *request = requests[request_count] = malloc(object + 1500);
        int head = sprintf(request,
                           "POST /v1/chat/completions HTTP/1.1\r\n"
                           "Host: 127.0.0.1:%d\r\n"
                           "Accept-Encoding: identity\r\n"
                           "Connection: keep-alive\r\n"
                           "Accept: application/json\r\n"
                           "Content-Type: application/json\r\n"
                           "User-Agent: OpenAI/Python 1.99.0\r\n"
                           "X-Stainless-Lang: python\r\n"
                           "X-Stainless-Package-Version: 1.99.0\r\n"
                           "X-Stainless-Runtime: CPython\r\n"
                           "Authorization: Bearer sk-bench-000000000000000000000000000000000000\r\n"
                           "X-Request-Id: req-%08ld\r\n"
                           "Content-Length: %zu\r\n\r\n",
                           port, request_count, object + (size_t)tail_size);
        memcpy(request + head, line, object);
        memcpy(request + head + object, tail, (size_t)tail_size);
        request_sizes[request_count++] = (size_t)head + object + (size_t)tail_size;
    }
    free(line);
    fclose(lines);
    return request_count ? 0 : -1;
}

static void expect(int events) {
    if (!events) {
        expected = WHOLE_ANSWER;
        expected_size = sizeof WHOLE_ANSWER - 1;
        return;
    }
    char *text = malloc((size_t)events * EVENT_MAX);
    for (int i = 0; i < events; i++) expected_size += event_text(text + expected_size, i, events);
    expected = text;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double milliseconds(const uint32_t *sorted, double quantile) {
    if (!samples) return 0;
    size_t rank = (size_t)((double)samples * quantile);
    return sorted[rank < samples ? rank : samples - 1] / 1000.0;
}

int main(int count, char **arguments) {
    if (count < 6 || count > 7) {
        fprintf(stderr,
                "usage: loadgen PORT CONNECTIONS MILLISECONDS EVENTS BODIES [REQUESTS]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    port = atoi(arguments[1]);
    int connections = atoi(arguments[2]), events = atoi(arguments[4]);
    if (load_bodies(arguments[5], events)) {
        fprintf(stderr, "loadgen: no bodies in %s\n", arguments[5]);
        return 1;
    }
    if (count == 7) request_limit = atol(arguments[6]);
    expect(events);
    latencies = malloc(SAMPLES_MAX * sizeof *latencies);
    firsts = malloc(SAMPLES_MAX * sizeof *firsts);
    poller = epoll_create1(0);
    connection *all = calloc((size_t)connections, sizeof *all);
    uint64_t begun_at = now_ns();
    end_at = begun_at + strtoull(arguments[3], NULL, 10) * 1000000ull;
    // Successive runs of streams begin at different bodies, or each would only see the first few.
    if (events && request_limit < 0) started = getpid() % request_count;
    for (int i = 0; i < connections && may_start(); i++) {
        if (dial(&all[i])) {
            errors++;
            continue;
        }
        active++;
        if (events) nanosleep(&(struct timespec){0, 300000}, NULL);  // streams out of step
        start(&all[i]);
    }
    static char buffer[262144];
    struct epoll_event ready[256];
    while (active > 0 && now_ns() < end_at + DRAIN_NS) {
        int n = epoll_wait(poller, ready, 256, 500);
        for (int i = 0; i < n; i++) {
            connection *c = ready[i].data.ptr;
            if (c->fd < 0) continue;
            if (ready[i].events & EPOLLOUT) {
                send_rest(c);
                if (!c->unsent_size) watch(c, EPOLL_CTL_MOD, EPOLLIN);
            }
            if (!(ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
            if (got > 0) feed(c, buffer, (size_t)got);
            else if (got == 0 || errno != EAGAIN) fail(c);
        }
    }
    double seconds = (double)(now_ns() - begun_at) / 1e9;
    qsort(latencies, samples, sizeof *latencies, ascending);
    qsort(firsts, samples, sizeof *firsts, ascending);
    printf("{\"done\":%ld,\"errors\":%ld,\"not_200\":%ld,\"mismatches\":%ld,\"stuck\":%d,"
           "\"seconds\":%.3f,\"lat_p50\":%.3f,\"lat_p99\":%.3f,\"first_p50\":%.3f,"
           "\"first_p99\":%.3f}\n",
           done, errors, not_200, mismatches, active, seconds, milliseconds(latencies, 0.5),
           milliseconds(latencies, 0.99), milliseconds(firsts, 0.5), milliseconds(firsts, 0.99));
    return 0;
}
