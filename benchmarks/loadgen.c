/*
 * A closed-loop load generator for acknowledged NATS publishing, small enough never to be the bottleneck.
 *
 *   loadgen publish   N connections with W messages in flight each; every message carries a reply subject
 *                     "<inbox>.<connection>.<slot>", an answer there frees the slot and sends the next message.
 *   loadgen respond   answers every message on a subject with a fixed text: what a NATS server alone can do.
 *   loadgen store     answers likewise what it has appended to a file, and has had copied by others, and no more:
 *                     no batches, checksums, offsets or epochs. What any store behind a NATS server has to do.
 *   loadgen copy      one of those others; says on which port it awaits the store.
 *   loadgen fsync     write + fdatasync of one growing file in a loop: the physical limit beside the others.
 *
 * One thread, one epoll, no library but libc. Standard output is one JSON object a line: {"event":"measuring"} when
 * the warm-up is over, {"event":"measured"} when the clock has run out, {"event":"result",...} after the drain.
 * Latency runs from formatting a message to parsing its answer and is kept in a log-linear histogram (0.8 % wide).
 * With --rate messages leave by the clock instead (open loop, at most W in flight), and latency runs from the moment
 * a message was due: a system that stalls is charged for the messages that had to wait as well.
 * With --payload=FILE every message is what the file holds.
 * With --confirm=pong a message asks for no answer: a PING behind it is answered when the server has taken both.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000ull
#define DRAIN_NS (10 * NS)
#define RANDOM_BYTES (1u << 20)
#define ERROR_TEXT_MAX 240
#define COPIES_MAX 8

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "loadgen: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) die("out of memory");
    return memory;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

/* --- options --------------------------------------------------------------------------------------------------- */

struct options {
    const char *host;
    int port;
    const char *subject;
    int connections;
    int window;
    int size;
    int subjects;
    bool subject_per_connection;
    bool fill_random;
    double seconds;
    double warmup;
    double rate;
    const char *file;
    int probe_every;
    const char *answer;
    bool confirm_by_pong;
    const char *payload; /* sent in every message; 0: random bytes */
    bool syncs;
    int copies[COPIES_MAX]; /* ports, on the host of the NATS server */
    int copy_count;
};

static struct options options = {
    .host = "127.0.0.1",
    .port = 4222,
    .subject = "bench",
    .connections = 1,
    .window = 1,
    .size = 128,
    .subjects = 1,
    .fill_random = true,
    .seconds = 10,
    .warmup = 1,
    .answer = "{\"stream\":\"BARE\",\"seq\":1}",
};

enum { HOST = 1, PORT, SUBJECT, CONNECTIONS, WINDOW, SIZE, SUBJECTS, ASSIGN, FILL, SECONDS, WARMUP, RATE, PATH, EVERY, ANSWER, CONFIRM, PAYLOAD, SYNC, COPY };

static const struct option long_options[] = {
    {"host", required_argument, 0, HOST},         {"port", required_argument, 0, PORT},
    {"subject", required_argument, 0, SUBJECT},   {"connections", required_argument, 0, CONNECTIONS},
    {"window", required_argument, 0, WINDOW},     {"size", required_argument, 0, SIZE},
    {"subjects", required_argument, 0, SUBJECTS}, {"assign", required_argument, 0, ASSIGN},
    {"fill", required_argument, 0, FILL},         {"seconds", required_argument, 0, SECONDS},
    {"warmup", required_argument, 0, WARMUP},     {"rate", required_argument, 0, RATE},
    {"file", required_argument, 0, PATH},         {"probe-every", required_argument, 0, EVERY},
    {"answer", required_argument, 0, ANSWER},     {"confirm", required_argument, 0, CONFIRM},
    {"payload", required_argument, 0, PAYLOAD},   {"sync", required_argument, 0, SYNC},
    {"copy", required_argument, 0, COPY},         {0, 0, 0, 0},
};

static int whole_number(const char *text, int least) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < least || value > INT32_MAX) die("not a number of at least %d: %s", least, text);
    return (int)value;
}

static double decimal_number(const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (*end || !(value >= 0 && value <= 1e6)) die("not a number up to a million: %s", text);
    return value;
}

static bool chosen(const char *text, const char *yes, const char *no) {
    if (!strcmp(text, yes)) return true;
    if (strcmp(text, no)) die("%s is neither %s nor %s", text, yes, no);
    return false;
}

static void read_payload(const char *path) {
    char *bytes = allocate(RANDOM_BYTES + 1);
    FILE *file = fopen(path, "rb");
    if (!file) die("%s: %s", path, strerror(errno));
    options.size = (int)fread(bytes, 1, RANDOM_BYTES + 1, file);
    if (ferror(file)) die("%s: %s", path, strerror(errno));
    fclose(file);
    options.payload = bytes;
}

static void read_options(int count, char **words) {
    int key;
    while ((key = getopt_long(count, words, "", long_options, 0)) != -1) {
        switch (key) {
        case HOST: options.host = optarg; break;
        case PORT: options.port = whole_number(optarg, 1); break;
        case SUBJECT: options.subject = optarg; break;
        case CONNECTIONS: options.connections = whole_number(optarg, 1); break;
        case WINDOW: options.window = whole_number(optarg, 1); break;
        case SIZE: options.size = whole_number(optarg, 0); break;
        case SUBJECTS: options.subjects = whole_number(optarg, 1); break;
        case ASSIGN: options.subject_per_connection = chosen(optarg, "per-connection", "round-robin"); break;
        case FILL: options.fill_random = chosen(optarg, "random", "zero"); break;
        case SECONDS: options.seconds = decimal_number(optarg); break;
        case WARMUP: options.warmup = decimal_number(optarg); break;
        case RATE: options.rate = decimal_number(optarg); break;
        case PATH: options.file = optarg; break;
        case EVERY: options.probe_every = whole_number(optarg, 1); break;
        case ANSWER: options.answer = optarg; break;
        case CONFIRM: options.confirm_by_pong = chosen(optarg, "pong", "answer"); break;
        case PAYLOAD: read_payload(optarg); break;
        case SYNC: options.syncs = chosen(optarg, "always", "os"); break;
        case COPY:
            if (options.copy_count == COPIES_MAX) die("more than %d copies", COPIES_MAX);
            options.copies[options.copy_count++] = whole_number(optarg, 1);
            break;
        default: exit(2);
        }
    }
    if (optind < count) die("unexpected argument: %s", words[optind]);
    if (options.size > (int)RANDOM_BYTES) die("a message of more than %u bytes", RANDOM_BYTES);
    if (options.probe_every && (options.connections > 1 || options.window > 1 || !options.file))
        die("probing between messages needs one connection, one message in flight and --file");
    if (options.rate > 0 && (options.connections > 1 || options.probe_every))
        die("a fixed rate needs one connection, and no probing");
    if (options.confirm_by_pong && (options.window > 1 || options.rate > 0 || options.probe_every))
        die("confirming by PONG needs one message in flight on each connection, no rate and no probing");
}

/* --- histogram -------------------------------------------------------------------------------------------------- */

#define SUB_BITS 7
#define SUB_COUNT (1u << SUB_BITS)
#define BUCKETS ((64 - SUB_BITS + 1) * SUB_COUNT)

struct histogram {
    uint64_t counts[BUCKETS];
    uint64_t total;
    uint64_t least;
    uint64_t most;
    double sum;
};

/* Values below 2^SUB_BITS have a bucket each; every further power of two is split in SUB_COUNT. */
static unsigned bucket_of(uint64_t value) {
    if (value < SUB_COUNT) return (unsigned)value;
    unsigned exponent = 63u - (unsigned)__builtin_clzll(value);
    unsigned sub = (unsigned)(value >> (exponent - SUB_BITS)) & (SUB_COUNT - 1);
    return (exponent - SUB_BITS + 1) * SUB_COUNT + sub;
}

static uint64_t bucket_middle(unsigned bucket) {
    if (bucket < SUB_COUNT) return bucket;
    unsigned shift = bucket / SUB_COUNT - 1;
    uint64_t low = (uint64_t)(SUB_COUNT + bucket % SUB_COUNT) << shift;
    return low + ((1ull << shift) >> 1);
}

static void record(struct histogram *histogram, uint64_t value) {
    histogram->counts[bucket_of(value)]++;
    if (!histogram->total++ || value < histogram->least) histogram->least = value;
    if (value > histogram->most) histogram->most = value;
    histogram->sum += (double)value;
}

static double percentile_us(const struct histogram *histogram, double share) {
    uint64_t wanted = (uint64_t)((double)histogram->total * share);
    uint64_t seen = 0;
    if (wanted >= histogram->total) return (double)histogram->most / 1e3;
    for (unsigned bucket = 0; bucket < BUCKETS; bucket++) {
        seen += histogram->counts[bucket];
        if (seen <= wanted) continue;
        uint64_t middle = bucket_middle(bucket);
        middle = middle < histogram->least ? histogram->least : middle;
        return (double)(middle > histogram->most ? histogram->most : middle) / 1e3;
    }
    return 0;
}

static void print_histogram(const char *name, const struct histogram *histogram) {
    double mean = histogram->total ? histogram->sum / (double)histogram->total / 1e3 : 0;
    printf("\"%s\":{\"count\":%" PRIu64 ",\"mean\":%.3f,\"min\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,"
           "\"p999\":%.3f,\"max\":%.3f}",
           name, histogram->total, mean, (double)histogram->least / 1e3, percentile_us(histogram, 0.5),
           percentile_us(histogram, 0.9), percentile_us(histogram, 0.99), percentile_us(histogram, 0.999),
           (double)histogram->most / 1e3);
}

static void announce(const char *event) {
    printf("{\"event\":\"%s\"}\n", event);
    fflush(stdout);
}

/* --- one fdatasync, as a log would do it ------------------------------------------------------------------------ */

struct probe {
    int fd;
    char *block;
    struct histogram duration;
};

static void open_probe(struct probe *probe) {
    if (!options.file) die("--file is missing");
    probe->fd = open(options.file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    if (probe->fd < 0) die("%s: %s", options.file, strerror(errno));
    probe->block = allocate((size_t)options.size);
    memset(probe->block, 0x5a, (size_t)options.size);
}

/* Appends one block and syncs it; the block is as large as the messages are. */
static void sync_once(struct probe *probe, bool counted) {
    uint64_t start = now_ns();
    if (write(probe->fd, probe->block, (size_t)options.size) != options.size) die("short write: %s", strerror(errno));
    if (fdatasync(probe->fd)) die("fdatasync: %s", strerror(errno));
    if (counted) record(&probe->duration, now_ns() - start);
}

/* --- connections ------------------------------------------------------------------------------------------------ */

struct buffer {
    char *bytes;
    size_t start;
    size_t end;
    size_t capacity;
};

/* Makes room for `wanted` more bytes after `end`, moving what is there to the front before it grows. */
static void reserve(struct buffer *buffer, size_t wanted) {
    if (buffer->end + wanted <= buffer->capacity) return;
    size_t held = buffer->end - buffer->start;
    if (held) memmove(buffer->bytes, buffer->bytes + buffer->start, held);
    buffer->start = 0;
    buffer->end = held;
    if (held + wanted <= buffer->capacity) return;
    buffer->capacity = 2 * (held + wanted);
    buffer->bytes = realloc(buffer->bytes, buffer->capacity);
    if (!buffer->bytes) die("out of memory");
}

static void append(struct buffer *buffer, const char *bytes, size_t length) {
    reserve(buffer, length);
    memcpy(buffer->bytes + buffer->end, bytes, length);
    buffer->end += length;
}

static void append_text(struct buffer *buffer, const char *text) { append(buffer, text, strlen(text)); }

struct connection {
    int fd;
    int index;
    bool waits_for_room;
    unsigned pongs;
    struct buffer in;
    struct buffer out;
    uint64_t *sent_ns; /* by slot; 0 = nothing in flight */
};

struct message {
    const char *subject;
    size_t subject_length;
    const char *reply;
    size_t reply_length;
    const char *payload;
    size_t payload_length;
    bool has_headers;
};

typedef void (*message_handler)(struct connection *, const struct message *, uint64_t now);
typedef void (*pong_handler)(struct connection *, uint64_t now);

static int poll_fd;
static struct connection *connections;
static pong_handler handle_pong;
static volatile sig_atomic_t interrupted;

static void watch(struct connection *connection, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (connection->waits_for_room ? EPOLLOUT : 0),
                                .data.ptr = connection};
    if (epoll_ctl(poll_fd, operation, connection->fd, &event)) die("epoll: %s", strerror(errno));
}

static void flush_out(struct connection *connection) {
    struct buffer *out = &connection->out;
    while (out->start < out->end) {
        ssize_t sent = send(connection->fd, out->bytes + out->start, out->end - out->start, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) die("send: %s", strerror(errno));
        out->start += (size_t)sent;
    }
    if (out->start == out->end) out->start = out->end = 0;
    bool waits = out->start < out->end;
    if (waits != connection->waits_for_room) {
        connection->waits_for_room = waits;
        watch(connection, EPOLL_CTL_MOD);
    }
}

static struct sockaddr_in address_of(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1) die("not an IPv4 address: %s", options.host);
    return address;
}

static int tcp_socket(void) {
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void dial_port(struct connection *connection, int index, int port) {
    struct sockaddr_in address = address_of(port);
    connection->index = index;
    connection->fd = tcp_socket();
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address))
        die("connect to %s:%d: %s", options.host, port, strerror(errno));
    if (fcntl(connection->fd, F_SETFL, O_NONBLOCK)) die("fcntl: %s", strerror(errno));
    watch(connection, EPOLL_CTL_ADD);
}

static void dial(struct connection *connection, int index) {
    dial_port(connection, index, options.port);
    append_text(&connection->out, "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"c\",\"version\":\"1\","
                                  "\"protocol\":1,\"headers\":true,\"no_responders\":true}\r\n");
}

/* --- the NATS protocol, reading side ---------------------------------------------------------------------------- */

struct word {
    const char *start;
    size_t length;
};

static int split_words(const char *line, const char *end, struct word *words, int most) {
    int count = 0;
    while (line < end) {
        while (line < end && *line == ' ') line++;
        if (line == end) break;
        if (count == most) die("too many words in a protocol line");
        const char *space = memchr(line, ' ', (size_t)(end - line));
        words[count].start = line;
        line = space ? space : end;
        words[count].length = (size_t)(line - words[count].start);
        count++;
    }
    return count;
}

static size_t digits(struct word word) {
    size_t value = 0;
    if (!word.length || word.length > 9) die("bad number in a protocol line");
    for (size_t i = 0; i < word.length; i++) {
        if (word.start[i] < '0' || word.start[i] > '9') die("bad digit in a protocol line");
        value = value * 10 + (size_t)(word.start[i] - '0');
    }
    return value;
}

/* MSG subject sid [reply] total | HMSG subject sid [reply] header total; false: the payload is not all here yet. */
static bool take_message(struct connection *connection, const char *line, const char *line_end, bool has_headers,
                         message_handler handle, uint64_t now) {
    struct buffer *in = &connection->in;
    struct word words[6];
    int count = split_words(line + (has_headers ? 5 : 4), line_end, words, 6);
    int fixed = has_headers ? 4 : 3;
    if (count != fixed && count != fixed + 1) die("bad message line: %.*s", (int)(line_end - line), line);
    size_t total = digits(words[count - 1]);
    size_t header = has_headers ? digits(words[count - 2]) : 0;
    size_t payload_at = (size_t)(line_end - in->bytes) + 2;
    if (header > total) die("headers longer than the message");
    if (in->end < payload_at + total + 2) {
        reserve(in, payload_at + total + 2 - in->end);
        return false;
    }
    struct message message = {.subject = words[0].start,
                              .subject_length = words[0].length,
                              .reply = count > fixed ? words[2].start : 0,
                              .reply_length = count > fixed ? words[2].length : 0,
                              .payload = in->bytes + payload_at + header,
                              .payload_length = total - header,
                              .has_headers = has_headers};
    in->start = payload_at + total + 2;
    handle(connection, &message, now);
    return true;
}

static void take_all(struct connection *connection, message_handler handle, uint64_t now) {
    struct buffer *in = &connection->in;
    while (in->start < in->end) {
        char *line = in->bytes + in->start;
        char *newline = memchr(line, '\n', in->end - in->start);
        if (!newline) return;
        char *line_end = newline > line && newline[-1] == '\r' ? newline - 1 : newline;
        if (!strncmp(line, "MSG ", 4) || !strncmp(line, "HMSG ", 5)) {
            if (!take_message(connection, line, line_end, *line == 'H', handle, now)) return;
            continue;
        }
        in->start = (size_t)(newline + 1 - in->bytes);
        if (!strncmp(line, "PING", 4)) append_text(&connection->out, "PONG\r\n");
        else if (!strncmp(line, "PONG", 4)) {
            connection->pongs++;
            if (handle_pong) handle_pong(connection, now);
        }
        else if (!strncmp(line, "-ERR", 4)) die("server: %.*s", (int)(line_end - line), line);
        else if (strncmp(line, "INFO", 4) && strncmp(line, "+OK", 3))
            die("unknown protocol line: %.*s", (int)(line_end - line), line);
    }
    in->start = in->end = 0;
}

static void receive(struct connection *connection, message_handler handle) {
    struct buffer *in = &connection->in;
    for (;;) {
        reserve(in, 65536);
        size_t room = in->capacity - in->end;
        ssize_t got = recv(connection->fd, in->bytes + in->end, room, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got < 0) die("recv: %s", strerror(errno));
        if (!got) die("the server closed connection %d", connection->index);
        in->end += (size_t)got;
        take_all(connection, handle, now_ns());
        if ((size_t)got < room) return;
    }
}

static void poll_once(int timeout_ms, message_handler handle) {
    struct epoll_event events[256];
    int count = epoll_wait(poll_fd, events, 256, timeout_ms);
    if (count < 0 && errno != EINTR) die("epoll_wait: %s", strerror(errno));
    for (int i = 0; i < count; i++) {
        struct connection *connection = events[i].data.ptr;
        if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) receive(connection, handle);
        flush_out(connection);
    }
}

static void ignore_message(struct connection *connection, const struct message *message, uint64_t now) {
    (void)connection, (void)message, (void)now;
}

/* Connects everything; returns after every subscription was confirmed by a PONG. */
static void open_connections(const char *subject, bool inbox_each) {
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    connections = allocate((size_t)options.connections * sizeof *connections);
    for (int i = 0; i < options.connections; i++) {
        char line[512];
        dial(&connections[i], i);
        if (inbox_each) snprintf(line, sizeof line, "SUB %s.%d.* 1\r\n", subject, i);
        else snprintf(line, sizeof line, "SUB %s 1\r\n", subject);
        append_text(&connections[i].out, line);
        append_text(&connections[i].out, "PING\r\n");
        flush_out(&connections[i]);
    }
    uint64_t deadline = now_ns() + DRAIN_NS;
    for (int ready = 0; ready < options.connections;) {
        if (connections[ready].pongs) ready++;
        else if (now_ns() > deadline) die("no PONG from the server");
        else poll_once(100, ignore_message);
    }
}

/* --- publish ---------------------------------------------------------------------------------------------------- */

static struct {
    char inbox[64];
    char **subjects;
    size_t *subject_lengths;
    char *random;
    char size_text[16];
    bool publishing;
    bool measuring;
    uint64_t published, acked, errors, no_responders, duplicates, stray, in_flight;
    uint64_t measured;
    uint64_t next_due;
    uint64_t sequence_sum, sequence_max;
    char first_error[ERROR_TEXT_MAX];
    struct histogram latency;
    struct probe probe;
    double probe_seconds;
} state;

static void prepare_publishing(void) {
    uint64_t seed = 0x9e3779b97f4a7c15ull;
    snprintf(state.inbox, sizeof state.inbox, "_INBOX.%x%" PRIx64, (unsigned)getpid(), now_ns());
    snprintf(state.size_text, sizeof state.size_text, " %d\r\n", options.size);
    state.subjects = allocate((size_t)options.subjects * sizeof *state.subjects);
    state.subject_lengths = allocate((size_t)options.subjects * sizeof *state.subject_lengths);
    for (int i = 0; i < options.subjects; i++) {
        int length = options.subjects == 1 ? asprintf(&state.subjects[i], "%s", options.subject)
                                           : asprintf(&state.subjects[i], "%s.%d", options.subject, i);
        if (length < 0) die("out of memory");
        state.subject_lengths[i] = (size_t)length;
    }
    state.random = allocate(2 * RANDOM_BYTES);
    for (size_t i = 0; options.fill_random && i < 2 * RANDOM_BYTES; i += 8) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        memcpy(state.random + i, &seed, 8);
    }
}

static void publish(struct connection *connection, int slot, uint64_t now) {
    struct buffer *out = &connection->out;
    uint64_t turn = options.subject_per_connection ? (uint64_t)connection->index : state.published;
    size_t subject = (size_t)(turn % (uint64_t)options.subjects);
    char reply[112];
    int reply_length = snprintf(reply, sizeof reply, " %s.%d.%d", state.inbox, connection->index, slot);
    append(out, "PUB ", 4);
    append(out, state.subjects[subject], state.subject_lengths[subject]);
    if (!options.confirm_by_pong) append(out, reply, (size_t)reply_length);
    append_text(out, state.size_text);
    append(out, options.payload ? options.payload : state.random + state.published * 64 % RANDOM_BYTES,
           (size_t)options.size);
    append(out, "\r\n", 2);
    if (options.confirm_by_pong) append_text(out, "PING\r\n");
    connection->sent_ns[slot] = now;
    state.published++;
    state.in_flight++;
}

static int slot_of(const struct message *message) {
    const char *dot = memrchr(message->subject, '.', message->subject_length);
    if (!dot) return -1;
    struct word word = {dot + 1, (size_t)(message->subject + message->subject_length - dot - 1)};
    return (int)digits(word);
}

static void keep_first_error(const struct message *message) {
    if (*state.first_error) return;
    size_t kept = 0;
    for (size_t i = 0; i < message->payload_length && kept + 2 < ERROR_TEXT_MAX; i++) {
        char byte = message->payload[i];
        if (byte == '"' || byte == '\\') state.first_error[kept++] = '\\';
        state.first_error[kept++] = byte >= ' ' ? byte : ' ';
    }
    state.first_error[kept] = 0;
}

static void count_sequence(const struct message *message) {
    const char *end = message->payload + message->payload_length;
    const char *at = memmem(message->payload, message->payload_length, "\"seq\":", 6);
    uint64_t sequence = 0;
    if (!at) return;
    for (at += 6; at < end && *at == ' ';) at++;
    for (; at < end && *at >= '0' && *at <= '9'; at++) sequence = sequence * 10 + (uint64_t)(*at - '0');
    state.sequence_sum += sequence;
    if (sequence > state.sequence_max) state.sequence_max = sequence;
}

/* True for an answer that says "stored". */
static bool judge(const struct message *message) {
    if (message->has_headers && !message->payload_length) {
        state.no_responders++;
        return false;
    }
    if (memmem(message->payload, message->payload_length, "\"error\"", 7)) {
        state.errors++;
        keep_first_error(message);
        return false;
    }
    if (memmem(message->payload, message->payload_length, "\"duplicate\"", 11)) state.duplicates++;
    count_sequence(message);
    state.acked++;
    return true;
}

static void probe_between(void) {
    static int acks_since;
    if (!options.probe_every || !state.measuring || ++acks_since < options.probe_every) return;
    acks_since = 0;
    uint64_t start = now_ns();
    sync_once(&state.probe, true);
    state.probe_seconds += (double)(now_ns() - start) / (double)NS;
}

/* Frees the slot of a message whose outcome is known, and sends the next one. */
static void settle(struct connection *connection, int slot, bool stored, uint64_t now) {
    if (stored && state.measuring) {
        state.measured++;
        record(&state.latency, now - connection->sent_ns[slot]);
    }
    connection->sent_ns[slot] = 0;
    state.in_flight--;
    if (!state.publishing || options.rate > 0) return;
    probe_between();
    publish(connection, slot, options.probe_every ? now_ns() : now);
}

static void on_answer(struct connection *connection, const struct message *message, uint64_t now) {
    int slot = slot_of(message);
    if (slot < 0 || slot >= options.window || !connection->sent_ns[slot]) {
        state.stray++;
        return;
    }
    settle(connection, slot, judge(message), now);
}

/* The server has taken the message; whether it is stored nobody says. */
static void on_pong(struct connection *connection, uint64_t now) {
    if (!connection->sent_ns[0]) return;
    state.acked++;
    settle(connection, 0, true, now);
}
static int free_slot(const struct connection *connection) {
    for (int i = 0; i < options.window; i++) {
        int slot = (int)((state.published + (uint64_t)i) % (uint64_t)options.window);
        if (!connection->sent_ns[slot]) return slot;
    }
    return -1;
}

/* Publishes what is due, as far as slots are free; returns how long there is nothing to do but listen. */
static uint64_t publish_due(uint64_t now, uint64_t deadline) {
    struct connection *connection = &connections[0];
    int slot = 0;
    while (state.next_due <= now && (slot = free_slot(connection)) >= 0) {
        publish(connection, slot, state.next_due);
        state.next_due += (uint64_t)((double)NS / options.rate);
    }
    flush_out(connection);
    return (slot < 0 || state.next_due > deadline ? deadline : state.next_due) - now;
}

/* epoll_wait counts in milliseconds, which is too coarse for a clock that messages leave by. */
static void wait_for_answers(uint64_t most_ns) {
    struct pollfd any = {.fd = poll_fd, .events = POLLIN};
    struct timespec most = {.tv_sec = (time_t)(most_ns / NS), .tv_nsec = (long)(most_ns % NS)};
    if (ppoll(&any, 1, &most, 0) < 0 && errno != EINTR) die("ppoll: %s", strerror(errno));
}

static void run_until(uint64_t deadline, message_handler handle) {
    for (uint64_t now = now_ns(); now < deadline && !interrupted; now = now_ns()) {
        if (options.rate > 0 && state.publishing) {
            wait_for_answers(publish_due(now, deadline));
            poll_once(0, handle);
            continue;
        }
        uint64_t left_ms = (deadline - now) / 1000000 + 1;
        poll_once(left_ms < 100 ? (int)left_ms : 100, handle);
    }
}

static void start_publishing(void) {
    state.publishing = true;
    if (options.rate > 0) {
        connections[0].sent_ns = allocate((size_t)options.window * sizeof(uint64_t));
        state.next_due = now_ns();
        prctl(PR_SET_TIMERSLACK, 1ul);
        return;
    }
    if (options.confirm_by_pong) handle_pong = on_pong;
    for (int i = 0; i < options.connections; i++) {
        connections[i].sent_ns = allocate((size_t)options.window * sizeof(uint64_t));
        for (int slot = 0; slot < options.window; slot++) publish(&connections[i], slot, now_ns());
        flush_out(&connections[i]);
    }
}

static void print_publish_result(double seconds, double cpu) {
    printf("{\"event\":\"result\",\"mode\":\"publish\",\"connections\":%d,\"window\":%d,\"size\":%d,\"subjects\":%d,"
           "\"seconds\":%.6f,\"probe_seconds\":%.6f,\"cpu_seconds\":%.6f,",
           options.connections, options.window, options.size, options.subjects, seconds, state.probe_seconds, cpu);
    printf("\"published\":%" PRIu64 ",\"acked\":%" PRIu64 ",\"measured\":%" PRIu64 ",\"errors\":%" PRIu64
           ",\"no_responders\":%" PRIu64 ",\"duplicates\":%" PRIu64 ",\"stray\":%" PRIu64 ",\"unanswered\":%" PRIu64
           ",\"sequence_sum\":%" PRIu64 ",\"sequence_max\":%" PRIu64 ",\"first_error\":\"%s\",",
           state.published, state.acked, state.measured, state.errors, state.no_responders, state.duplicates,
           state.stray, state.in_flight, state.sequence_sum, state.sequence_max, state.first_error);
    print_histogram("latency_us", &state.latency);
    printf(",");
    print_histogram("fdatasync_us", &state.probe.duration);
    printf("}\n");
}

static void run_publish(void) {
    prepare_publishing();
    if (options.probe_every) open_probe(&state.probe);
    open_connections(state.inbox, true);
    start_publishing();
    run_until(now_ns() + (uint64_t)(options.warmup * (double)NS), on_answer);
    announce("measuring");
    double cpu = cpu_seconds();
    uint64_t start = now_ns();
    state.measuring = true;
    run_until(start + (uint64_t)(options.seconds * (double)NS), on_answer);
    state.measuring = state.publishing = false;
    double seconds = (double)(now_ns() - start) / (double)NS;
    cpu = cpu_seconds() - cpu;
    announce("measured");
    for (uint64_t deadline = now_ns() + DRAIN_NS; state.in_flight && now_ns() < deadline && !interrupted;)
        poll_once(100, on_answer);
    print_publish_result(seconds, cpu);
}

/* --- respond ---------------------------------------------------------------------------------------------------- */

static char *answer_tail;
static size_t answer_tail_length;
static uint64_t answered;

static void on_request(struct connection *connection, const struct message *message, uint64_t now) {
    (void)now;
    if (!message->reply) return;
    append(&connection->out, "PUB ", 4);
    append(&connection->out, message->reply, message->reply_length);
    append(&connection->out, answer_tail, answer_tail_length);
    answered++;
}

static void prepare_answer(void) {
    int length = asprintf(&answer_tail, " %zu\r\n%s\r\n", strlen(options.answer), options.answer);
    if (length < 0) die("out of memory");
    answer_tail_length = (size_t)length;
}

static void run_respond(void) {
    prepare_answer();
    options.connections = 1;
    open_connections(options.subject, false);
    announce("ready");
    while (!interrupted) poll_once(1000, on_request);
    printf("{\"event\":\"result\",\"mode\":\"respond\",\"answered\":%" PRIu64 ",\"cpu_seconds\":%.6f}\n", answered,
           cpu_seconds());
}

/* --- store and copy ---------------------------------------------------------------------------------------------- */

#define GROUPS_MAX 2 /* under way at once: while one is synced and copied, the next one is written */

static struct {
    int file;
    struct buffer payloads; /* of the next group */
    struct buffer answers[GROUPS_MAX + 1]; /* of the groups under way, the oldest first, then of the next group */
    int under_way;
    uint64_t begun, ended;
    struct connection copies[COPIES_MAX];
    uint64_t copied[COPIES_MAX]; /* groups */
} store;

static int open_file(void) {
    if (!options.file) die("--file is missing");
    int file = open(options.file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) die("%s: %s", options.file, strerror(errno));
    return file;
}

static void write_group(int file, const char *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t written = write(file, bytes + done, length - done);
        if (written < 0) die("write: %s", strerror(errno));
        done += (size_t)written;
    }
    if (options.syncs && fdatasync(file)) die("fdatasync: %s", strerror(errno));
}

static void on_stored(struct connection *connection, const struct message *message, uint64_t now) {
    (void)connection, (void)now;
    append(&store.payloads, message->payload, message->payload_length);
    if (!message->reply) return;
    struct buffer *answers = &store.answers[store.under_way];
    append(answers, "PUB ", 4);
    append(answers, message->reply, message->reply_length);
    append(answers, answer_tail, answer_tail_length);
}

/* Copies are on their way before this file is written: all sync at once. */
static void begin_group(void) {
    struct buffer *payloads = &store.payloads;
    uint32_t length = (uint32_t)payloads->end;
    for (int i = 0; i < options.copy_count; i++) {
        append(&store.copies[i].out, (const char *)&length, sizeof length);
        append(&store.copies[i].out, payloads->bytes, length);
        flush_out(&store.copies[i]);
    }
    write_group(store.file, payloads->bytes, length);
    payloads->end = 0;
    store.under_way++;
    store.begun++;
}

/* A group has ended when every copy of it is acknowledged. */
static void end_groups(struct connection *nats) {
    uint64_t ended = store.begun;
    for (int i = 0; i < options.copy_count; i++)
        if (store.copied[i] < ended) ended = store.copied[i];
    for (; store.ended < ended; store.ended++) {
        struct buffer done = store.answers[0];
        append(&nats->out, done.bytes, done.end);
        memmove(&store.answers[0], &store.answers[1], GROUPS_MAX * sizeof done);
        done.end = 0;
        store.answers[GROUPS_MAX] = done;
        store.under_way--;
    }
    flush_out(nats);
}

static void receive_copied(struct connection *copy) {
    char acknowledged[256];
    ssize_t got = recv(copy->fd, acknowledged, sizeof acknowledged, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) die("copy %d has ended", copy->index);
    store.copied[copy->index] += (uint64_t)got;
}

static void run_store(void) {
    prepare_answer();
    store.file = open_file();
    options.connections = 1;
    open_connections(options.subject, false);
    struct connection *nats = &connections[0];
    for (int i = 0; i < options.copy_count; i++) dial_port(&store.copies[i], i, options.copies[i]);
    announce("ready");
    while (!interrupted) {
        struct epoll_event events[COPIES_MAX + 1];
        int count = epoll_wait(poll_fd, events, COPIES_MAX + 1, 1000);
        if (count < 0 && errno != EINTR) die("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;
            if (connection == nats) receive(nats, on_stored);
            else {
                if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) receive_copied(connection);
                flush_out(connection);
            }
        }
        end_groups(nats);
        if (store.payloads.end && store.under_way < GROUPS_MAX) {
            begin_group();
            end_groups(nats);
        }
    }
}

/* Each group comes behind its length in four bytes; one byte acknowledges it. All that have come are synced together. */
static void run_copy(void) {
    struct sockaddr_in address = address_of(0);
    socklen_t address_length = sizeof address;
    struct buffer in = {0};
    int file = open_file(), listener = tcp_socket(), on = 1;
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &address_length))
        die("listen on %s: %s", options.host, strerror(errno));
    printf("{\"event\":\"ready\",\"port\":%d}\n", ntohs(address.sin_port));
    fflush(stdout);
    int store_fd = accept(listener, 0, 0);
    if (store_fd < 0 && errno == EINTR) return;
    if (store_fd < 0) die("accept: %s", strerror(errno));
    setsockopt(store_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    while (!interrupted) {
        reserve(&in, 1 << 20);
        ssize_t got = recv(store_fd, in.bytes + in.end, in.capacity - in.end, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) die("recv: %s", strerror(errno));
        if (!got) return;
        in.end += (size_t)got;
        char acknowledgements[256] = {0};
        size_t groups = 0, whole = in.start;
        uint32_t length;
        while (in.end - whole >= sizeof length && groups < sizeof acknowledgements) {
            memcpy(&length, in.bytes + whole, sizeof length);
            if (in.end - whole - sizeof length < length) break;
            whole += sizeof length + length;
            groups++;
        }
        if (!groups) continue;
        write_group(file, in.bytes + in.start, whole - in.start);
        in.start = whole;
        if (in.start == in.end) in.start = in.end = 0;
        if (send(store_fd, acknowledgements, groups, MSG_NOSIGNAL) != (ssize_t)groups) die("send: %s", strerror(errno));
    }
}

/* --- fsync ------------------------------------------------------------------------------------------------------ */

static void run_fsync(void) {
    struct probe *probe = allocate(sizeof *probe);
    open_probe(probe);
    uint64_t warm = now_ns() + (uint64_t)(options.warmup * (double)NS);
    while (now_ns() < warm && !interrupted) sync_once(probe, false);
    uint64_t start = now_ns();
    uint64_t end = start + (uint64_t)(options.seconds * (double)NS);
    while (now_ns() < end && !interrupted) sync_once(probe, true);
    printf("{\"event\":\"result\",\"mode\":\"fsync\",\"size\":%d,\"seconds\":%.6f,", options.size,
           (double)(now_ns() - start) / (double)NS);
    print_histogram("fdatasync_us", &probe->duration);
    printf("}\n");
}

static void interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

int main(int count, char **words) {
    if (count < 2) die("usage: loadgen publish|respond|store|copy|fsync [--option value]...");
    struct sigaction action = {.sa_handler = interrupt};
    sigaction(SIGTERM, &action, 0);
    sigaction(SIGINT, &action, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* whoever started us is gone: nobody reads the result */
    read_options(count - 1, words + 1);
    if (!strcmp(words[1], "publish")) run_publish();
    else if (!strcmp(words[1], "respond")) run_respond();
    else if (!strcmp(words[1], "store")) run_store();
    else if (!strcmp(words[1], "copy")) run_copy();
    else if (!strcmp(words[1], "fsync")) run_fsync();
    else die("unknown mode: %s", words[1]);
    return 0;
}
