/* The load for the echo servers: starts one, talks to it, measures, kills it.
 *
 * usage: load [-c ACTIVE] [-i IDLE] [-s BYTES] [-t SECONDS] SERVER [ARG...]
 *
 * The server says its port of 127.0.0.1 on its first line.  First the idle
 * connections are made, one after the other; each exchanges one message and
 * is then left alone.  Then each active connection sends a message, waits
 * until all of it has come back, checks it, and sends the next.  Raw epoll
 * rather than libuv, so that this end needs less CPU than any server.  Reports
 *
 *   idle   bytes by which the server grew for each idle connection
 *   rate   messages a second
 *   p50, p99  microseconds from sending a message to having it back
 *   cpu    microseconds of the server's CPU for each message
 *   waited part of the time for which the server or this program could have
 *          run and had no CPU, because something else had it
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

#define MAX_BYTES 65536
#define WARM_UP 0.3       /* seconds */
#define PATIENCE_MS 10000 /* for a server that starts, or answers */

typedef struct {
  int fd;
  uint64_t number; /* first bytes of the message under way */
  size_t got;      /* bytes of it that are back */
  double sent_at;
} connection_t;

static struct {
  pid_t pid;
  char name[16]; /* of the pid in /proc */
  clockid_t cpu;
  struct sockaddr_in address;
} server;

static int bytes = 64;
static char message[MAX_BYTES];

static void die(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  if (server.pid > 0) kill(server.pid, SIGKILL);
  exit(1);
}

static void check(bool good, const char *what) {
  if (!good) die("%s: %s", what, strerror(errno));
}

/* Latencies: 64 counters for each power of two of nanoseconds. */

#define STEPS 64

static uint64_t counters[64 * STEPS];

static void count(double latency) {
  uint64_t ns = (uint64_t)(latency * 1e9) + STEPS;
  int power = 63 - __builtin_clzll(ns);
  counters[power * STEPS + (int)((ns >> (power - 6)) % STEPS)]++;
}

/* The microseconds that this part of `total` latencies stay under. */
static double percentile(double part, uint64_t total) {
  uint64_t left = (uint64_t)(part * (double)total);
  int i = 0;
  while (i < 64 * STEPS - 1 && counters[i] <= left) left -= counters[i++];
  uint64_t ns = (uint64_t)(STEPS + i % STEPS) << (i / STEPS - 6);
  return (double)(ns - STEPS) / 1e3;
}

/* The server. */

static int read_port(int fd) {
  struct pollfd ready = {.fd = fd, .events = POLLIN};
  char line[32] = "";
  if (poll(&ready, 1, PATIENCE_MS) != 1) die("the server says no port");
  ssize_t n = read(fd, line, sizeof line - 1);
  int port = n > 0 ? atoi(line) : 0;
  if (port == 0) die("the server has not started");
  return port;
}

static void start_server(char **argv) {
  int out[2];
  check(pipe(out) == 0, "pipe");
  server.pid = fork();
  check(server.pid >= 0, "fork");
  if (server.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out[1], STDOUT_FILENO);
    close(out[0]);
    close(out[1]);
    execvp(argv[0], argv);
    _exit(127);
  }
  close(out[1]);
  server.address = (struct sockaddr_in){
      .sin_family = AF_INET,
      .sin_port = htons((uint16_t)read_port(out[0])),
      .sin_addr = {htonl(INADDR_LOOPBACK)},
  };
  snprintf(server.name, sizeof server.name, "%d", (int)server.pid);
  check(clock_getcpuclockid(server.pid, &server.cpu) == 0, "CPU clock");
}

/* Seconds for which threads of that process could have run and had no CPU. */
static double delay_of(const char *process) {
  char path[300];
  double ns = 0;
  snprintf(path, sizeof path, "/proc/%s/task", process);
  DIR *tasks = opendir(path);
  check(tasks != NULL, path);
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    double ran, delay;
    snprintf(path, sizeof path, "/proc/%s/task/%.16s/schedstat", process,
             task->d_name);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%lf %lf", &ran, &delay) == 2) ns += delay;
    if (file) fclose(file);
  }
  closedir(tasks);
  return ns / 1e9;
}

/* Where a process has spent its time. */
typedef struct {
  const char *name;
  clockid_t clock;
  double cpu, delay;
} spent_t;

static void begin(spent_t *spent) {
  spent->delay = delay_of(spent->name);
  spent->cpu = seconds_on(spent->clock);
}

static void end(spent_t *spent) {
  spent->cpu = seconds_on(spent->clock) - spent->cpu;
  spent->delay = delay_of(spent->name) - spent->delay;
}

/* Seconds for which it waited for others: while its own threads wait for each
 * other, one of them runs. */
static double waited(const spent_t *spent, double elapsed) {
  double away = elapsed > spent->cpu ? elapsed - spent->cpu : 0;
  return away < spent->delay ? away : spent->delay;
}

static void allow_descriptors(int n) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < (rlim_t)n + 64) {
    die("%d connections need a larger ulimit -n", n);
  }
}

/* Connections. */

static void open_connection(connection_t *c) {
  int on = 1;
  struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  check(c->fd >= 0, "socket");
  check(connect(c->fd, (struct sockaddr *)&server.address,
                sizeof server.address) == 0,
        "connect");
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

static void send_next(connection_t *c, double now) {
  c->number++;
  c->got = 0;
  c->sent_at = now;
  memcpy(message, &c->number, sizeof c->number);
  ssize_t n = send(c->fd, message, (size_t)bytes, MSG_NOSIGNAL);
  if (n != bytes) die("a message could not be sent whole");
}

/* Whether the message is back. */
static bool receive(connection_t *c) {
  char reply[MAX_BYTES];
  size_t missing = (size_t)bytes - c->got;
  ssize_t n = recv(c->fd, reply, missing, 0);
  if (n < 0 && errno == EINTR) return false;
  if (n <= 0) die("recv: %s", n == 0 ? "end of file" : strerror(errno));
  memcpy(message, &c->number, sizeof c->number);
  if (memcmp(reply, message + c->got, (size_t)n) != 0) die("a wrong answer");
  c->got += (size_t)n;
  return c->got == (size_t)bytes;
}

static void exchange(connection_t *c) {
  send_next(c, 0);
  while (!receive(c)) continue;
}

/* The server's memory settles after its first connection, which is not
 * counted. */
static void hold_idle(int n) {
  connection_t c = {0};
  if (n == 0) return;
  open_connection(&c);
  exchange(&c);
  usleep(200000);
  double before = resident(server.name);
  for (int i = 0; i < n; i++) {
    open_connection(&c);
    exchange(&c);
  }
  usleep(200000);
  printf("idle %.9g\n", (resident(server.name) - before) / n);
}

static void watch(int epoll, connection_t *c) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  open_connection(c);
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event) == 0, "epoll_ctl");
}

/* Keeps going until that time; how many messages came back. */
static uint64_t keep_going(int epoll, double until) {
  struct epoll_event events[1024];
  uint64_t messages = 0;
  while (seconds_on(CLOCK_MONOTONIC) < until) {
    int n = epoll_wait(epoll, events, 1024, PATIENCE_MS);
    if (n == 0) die("no answer");
    for (int i = 0; i < n; i++) {
      connection_t *c = events[i].data.ptr;
      if (!receive(c)) continue;
      double now = seconds_on(CLOCK_MONOTONIC);
      count(now - c->sent_at);
      messages++;
      send_next(c, now);
    }
  }
  return messages;
}

static void measure(int epoll, double seconds) {
  spent_t theirs = {.name = server.name, .clock = server.cpu};
  spent_t ours = {.name = "self", .clock = CLOCK_PROCESS_CPUTIME_ID};
  double start = seconds_on(CLOCK_MONOTONIC);
  keep_going(epoll, start + WARM_UP);
  memset(counters, 0, sizeof counters);

  begin(&theirs);
  begin(&ours);
  start = seconds_on(CLOCK_MONOTONIC);
  uint64_t messages = keep_going(epoll, start + seconds);
  double elapsed = seconds_on(CLOCK_MONOTONIC) - start;
  end(&theirs);
  end(&ours);

  printf("rate %.9g\n", (double)messages / elapsed);
  printf("p50 %.9g\n", percentile(0.50, messages));
  printf("p99 %.9g\n", percentile(0.99, messages));
  printf("cpu %.9g\n", theirs.cpu * 1e6 / (double)messages);
  printf("waited %.9g\n",
         (waited(&theirs, elapsed) + waited(&ours, elapsed)) / elapsed);
}

int main(int argc, char **argv) {
  int active = 64, idle = 0, option;
  double seconds = 2;

  while ((option = getopt(argc, argv, "+c:i:s:t:")) != -1) {
    if (option == 'c') active = atoi(optarg);
    if (option == 'i') idle = atoi(optarg);
    if (option == 's') bytes = atoi(optarg);
    if (option == 't') seconds = strtod(optarg, NULL);
    if (option == '?') return 2;
  }
  if (optind == argc || bytes < 8 || bytes > MAX_BYTES) return 2;
  memset(message, 'x', sizeof message);
  allow_descriptors(active + idle);
  start_server(argv + optind);
  hold_idle(idle);

  int epoll = epoll_create1(0);
  check(epoll >= 0, "epoll_create1");
  connection_t *connections = calloc((size_t)active, sizeof *connections);
  check(connections != NULL, "calloc");
  for (int i = 0; i < active; i++) watch(epoll, &connections[i]);
  for (int i = 0; i < active; i++) {
    send_next(&connections[i], seconds_on(CLOCK_MONOTONIC));
  }
  measure(epoll, seconds);

  kill(server.pid, SIGKILL);
  waitpid(server.pid, NULL, 0);
  free(connections);
  return 0;
}
