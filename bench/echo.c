/* TCP echo server on libuv alone, see echo.lua.  The limit.
 *
 * usage: echo BACKLOG
 */
#include <uv.h>

#include "support.h"

typedef struct {
  uv_write_t request;
  char bytes[];
} pending_t;

static void check(int err) {
  if (err == 0) return;
  fprintf(stderr, "%s\n", uv_strerror(err));
  exit(1);
}

static void on_close(uv_handle_t *handle) { free(handle); }

/* Reads and writes take turns, so one buffer does for all connections. */
static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf) {
  static char bytes[65536];
  (void)handle, (void)size;
  *buf = uv_buf_init(bytes, sizeof bytes);
}

static void on_written(uv_write_t *request, int status) {
  (void)status;
  free(request);
}

/* What the socket did not take at once waits in memory of its own. */
static void write_later(uv_stream_t *client, const char *bytes, size_t size) {
  pending_t *pending = malloc(sizeof *pending + size);
  if (!pending) abort();
  memcpy(pending->bytes, bytes, size);
  uv_buf_t buf = uv_buf_init(pending->bytes, (unsigned)size);
  check(uv_write(&pending->request, client, &buf, 1, on_written));
}

static void on_read(uv_stream_t *client, ssize_t n, const uv_buf_t *buf) {
  if (n < 0) {
    uv_close((uv_handle_t *)client, on_close);
    return;
  }
  if (n == 0) return;
  uv_buf_t out = uv_buf_init(buf->base, (unsigned)n);
  int written = uv_try_write(client, &out, 1);
  if (written < 0) written = 0;
  if (written < n) {
    write_later(client, buf->base + written, (size_t)(n - written));
  }
}

static void on_connection(uv_stream_t *server, int err) {
  check(err);
  uv_tcp_t *client = malloc(sizeof *client);
  if (!client) abort();
  check(uv_tcp_init(server->loop, client));
  check(uv_accept(server, (uv_stream_t *)client));
  check(uv_read_start((uv_stream_t *)client, on_alloc, on_read));
}

static void say_port(const uv_tcp_t *server) {
  struct sockaddr_in address;
  int size = sizeof address;
  check(uv_tcp_getsockname(server, (struct sockaddr *)&address, &size));
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  uv_tcp_t server;
  struct sockaddr_in address;

  check(uv_ip4_addr("127.0.0.1", 0, &address));
  check(uv_tcp_init(uv_default_loop(), &server));
  check(uv_tcp_bind(&server, (const struct sockaddr *)&address, 0));
  check(uv_listen((uv_stream_t *)&server, atoi(argv[1]), on_connection));
  say_port(&server);
  return uv_run(uv_default_loop(), UV_RUN_DEFAULT);
}
