/*
** test_poll.c: polls and their proxies, where Lua does not reach (PL, R11,
** R83, R84, R85): subscribers that act while others are told, the native mask,
** descriptors that are closed, duplicated and reused.
*/

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "events.h"
#include "support.h"

static int is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static int count_open(void) {
  int fd, count = 0;
  for (fd = 0; fd < 256; fd++) count += is_open(fd);
  return count;
}

/* Turns the loop until nothing is left of what was closed. */
static void turn(world_t *w) {
  int i;
  for (i = 0; i < 4; i++) vg__reactor_turn(w->s->reactor, 0);
}

static vg_poll_proxy_t *new_proxy(world_t *w, int fd, int mask) {
  vg_poll_proxy_t *proxy;
  vg_poll_t *poll;
  assert_int_equal(vg_poll_open(w->s, fd, 0, &poll), 0);
  assert_int_equal(vg_poll_proxy_new(poll, mask, &proxy), 0);
  vg_event_release(&poll->event);
  return proxy;
}

typedef struct watch {
  listener_t listener;
  vg_poll_proxy_t *proxy;
} watch_t;

static void watch(world_t *w, watch_t *x, int fd, int mask) {
  listener_init(&x->listener);
  x->proxy = new_proxy(w, fd, mask);
  assert_int_equal(vg_event_add_callback(&x->proxy->event, &x->listener.base),
                   0);
  assert_int_equal(vg_event_start(&x->proxy->event), 0);
}

static void unwatch(watch_t *x) {
  vg_event_del_callback(&x->proxy->event, &x->listener.base);
  vg_event_stop(&x->proxy->event);
  vg_event_release(&x->proxy->event);
}

/* What libuv is asked for, once it has been told. */
static int native_mask(world_t *w, const vg_poll_t *poll) {
  int mask = 0;
  turn(w);
  if (poll->native == NULL) return 0;
  if (poll->wanting[0] > 0) mask |= UV_READABLE;
  if (poll->wanting[1] > 0) mask |= UV_WRITABLE;
  return mask;
}

static void test_each_proxy_has_its_own_mask(void **state) {
  world_t *w = *state;
  watch_t reader, writer;
  int fds[2];

  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0); /* PL-01 */
  watch(w, &reader, fds[0], UV_READABLE);
  watch(w, &writer, fds[0], UV_WRITABLE);
  assert_ptr_equal(reader.proxy->poll, writer.proxy->poll);
  turn(w);
  assert_int_equal(reader.listener.calls, 0);
  assert_true(writer.listener.calls > 0);
  assert_int_equal(writer.listener.value, UV_WRITABLE);
  assert_int_equal(native_mask(w, reader.proxy->poll),
                   UV_READABLE | UV_WRITABLE); /* PL-02 */
  unwatch(&writer);
  assert_int_equal(native_mask(w, reader.proxy->poll), UV_READABLE);
  assert_int_equal(write(fds[1], "x", 1), 1);
  turn(w);
  assert_true(reader.listener.calls > 0);
  assert_int_equal(reader.listener.value, UV_READABLE);
  unwatch(&reader);
  close(fds[0]);
  close(fds[1]);
}

static void test_the_poll_goes_with_its_last_proxy(void **state) {
  world_t *w = *state;
  watch_t a, b;
  int fds[2], before;

  assert_int_equal(pipe(fds), 0); /* PL-06 */
  turn(w);
  before = count_open();
  assert_int_equal(w->s->reactor->handle_count, 1);
  watch(w, &a, fds[0], UV_READABLE);
  watch(w, &b, fds[0], UV_READABLE);
  unwatch(&a);
  assert_non_null(w->s->reactor->polls);
  unwatch(&b);
  assert_null(w->s->reactor->polls);
  assert_int_equal(count_open(), before);
  turn(w);
  assert_int_equal(w->s->reactor->handle_count, 1);
  assert_int_equal(w->s->active, 0);
  close(fds[0]);
  close(fds[1]);
}

/* Between two waits nothing is opened and closed; a turn later everything is,
** so that closing the descriptor closes the file. */
static void test_the_duplicate_lives_until_the_next_turn(void **state) {
  world_t *w = *state;
  watch_t a;
  struct vg_poll_native *native;
  char byte;
  int fds[2], before;

  assert_int_equal(pipe(fds), 0);
  before = count_open();
  w->s->running = 1; /* what vg_scheduler_run says */
  watch(w, &a, fds[1], UV_WRITABLE);
  native = a.proxy->poll->native;
  assert_non_null(native);
  vg_event_stop(&a.proxy->event);
  vg_event_start(&a.proxy->event);
  assert_ptr_equal(a.proxy->poll->native, native);
  vg_event_stop(&a.proxy->event);
  turn(w);
  assert_null(a.proxy->poll->native);
  assert_int_equal(count_open() - before, 0);
  close(fds[1]);
  assert_int_equal(read(fds[0], &byte, 1), 0); /* the end: nobody else has it */
  w->s->running = 0;
  unwatch(&a);
  close(fds[0]);
}

static void test_close_fd(void **state) {
  world_t *w = *state;
  vg_poll_proxy_t *proxy;
  vg_poll_t *poll;
  int fds[2];

  assert_int_equal(pipe(fds), 0); /* PL-06 */
  assert_int_equal(vg_poll_open(w->s, fds[0], VG_EVENT_CLOSE_FD, &poll), 0);
  assert_int_equal(vg_poll_proxy_new(poll, UV_READABLE, &proxy), 0);
  vg_event_release(&poll->event);
  w->s->running = 1; /* the native handle is open until the next turn */
  vg_event_start(&proxy->event);
  vg_event_release(&proxy->event);
  w->s->running = 0;
  assert_true(is_open(fds[0]));
  turn(w);
  assert_false(is_open(fds[0]));

  assert_int_equal(vg_poll_open(w->s, fds[1], VG_EVENT_CLOSE_FD, &poll), 0);
  vg_event_release(&poll->event); /* never started */
  turn(w);
  assert_false(is_open(fds[1]));
}

/* A descriptor that is somebody else's by now is not closed. */
static void test_close_fd_of_a_reused_number(void **state) {
  world_t *w = *state;
  vg_poll_t *poll;
  int fds[2], other[2];

  assert_int_equal(pipe(fds), 0);
  assert_int_equal(pipe(other), 0);
  assert_int_equal(vg_poll_open(w->s, fds[0], VG_EVENT_CLOSE_FD, &poll), 0);
  assert_int_equal(dup2(other[0], fds[0]), fds[0]);
  vg_event_release(&poll->event);
  turn(w);
  assert_true(is_open(fds[0]));
  close(fds[0]);
  close(fds[1]);
  close(other[0]);
  close(other[1]);
}


/*
** {== Deliveries
*/

enum { SIBLINGS = 5 };

static void drop_all(listener_t *self, vg_event_t *event) {
  watch_t *all = self->data;
  int i;
  VG_UNUSED(event);
  for (i = 0; i < SIBLINGS; i++) {
    vg_poll_proxy_t *proxy = all[i].proxy;
    all[i].proxy = NULL; /* its subscriber is told, and comes here */
    if (proxy != NULL) vg_event_release(&proxy->event);
  }
}

static void drop_next(listener_t *self, vg_event_t *event) {
  watch_t *all = self->data;
  int i;
  VG_UNUSED(event);
  for (i = 0; i < SIBLINGS; i++) {
    watch_t *next = &all[(i + 1) % SIBLINGS];
    vg_poll_proxy_t *proxy = next->proxy;
    if (self != &all[i].listener) continue;
    next->proxy = NULL;
    if (proxy != NULL) vg_event_release(&proxy->event);
    return;
  }
}

/* Everybody hears of it once: that it is ready, or that it was closed before
** its turn.  (Who is dropped in its turn hears of that, too.) */
static void siblings(world_t *w, void (*act)(listener_t *, vg_event_t *)) {
  watch_t all[SIBLINGS];
  int fds[2], i, told = 0;

  assert_int_equal(pipe(fds), 0);
  assert_int_equal(write(fds[1], "x", 1), 1);
  for (i = 0; i < SIBLINGS; i++) {
    watch(w, &all[i], fds[0], UV_READABLE);
    all[i].listener.data = all;
    all[i].listener.act = act;
  }
  vg__reactor_turn(w->s->reactor, 1);
  for (i = 0; i < SIBLINGS; i++) {
    int calls = all[i].listener.calls, status = all[i].listener.status;
    assert_true(calls == 1 || (calls == 2 && status == VG_ECLOSED));
    told += calls == 2 || status == 0;
    if (all[i].proxy == NULL) continue;
    vg_event_stop(&all[i].proxy->event);
    vg_event_release(&all[i].proxy->event);
  }
  assert_true(told > 0);
  turn(w);
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->reactor->handle_count, 1);
  close(fds[0]);
  close(fds[1]);
}

static void test_all_dropped_by_the_first(void **state) {
  siblings(*state, drop_all); /* PL-05 */
}

static void test_each_drops_the_next(void **state) {
  siblings(*state, drop_next); /* PL-05 */
}

static void stop_self(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  vg_event_stop(event);
}

/* None is skipped although every one leaves when it is told. */
static void test_everybody_stops_when_told(void **state) {
  world_t *w = *state;
  watch_t all[SIBLINGS];
  int fds[2], i;

  assert_int_equal(pipe(fds), 0);
  for (i = 0; i < SIBLINGS; i++) {
    watch(w, &all[i], fds[0], UV_READABLE);
    all[i].listener.act = stop_self;
  }
  assert_int_equal(write(fds[1], "x", 1), 1);
  vg__reactor_turn(w->s->reactor, 1);
  turn(w);
  for (i = 0; i < SIBLINGS; i++) {
    assert_int_equal(all[i].listener.calls, 1);
    unwatch(&all[i]);
  }
  close(fds[0]);
  close(fds[1]);
}

static void close_self(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  vg_poll_proxy_close((vg_poll_proxy_t *)event);
}

static void test_closed_in_its_own_callback(void **state) {
  world_t *w = *state;
  watch_t a;
  int fds[2];

  assert_int_equal(pipe(fds), 0);
  watch(w, &a, fds[1], UV_WRITABLE);
  a.listener.act = close_self;
  vg__reactor_turn(w->s->reactor, 1);
  turn(w);
  assert_int_equal(a.listener.calls, 1);
  assert_true(a.proxy->event.flags & VG_EVENT_CLOSED);
  assert_int_equal(w->s->active, 0);
  unwatch(&a);
  close(fds[0]);
  close(fds[1]);
}

static void test_disconnect_reaches_every_proxy(void **state) {
  world_t *w = *state;
  watch_t writer, ender;
  char block[4096] = {0};
  int fds[2];

  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  while (write(fds[0], block, sizeof block) > 0) continue;
  watch(w, &writer, fds[0], UV_WRITABLE);
  watch(w, &ender, fds[0], UV_DISCONNECT);
  turn(w);
  assert_int_equal(writer.listener.calls, 0);
  shutdown(fds[1], SHUT_WR);
  vg__reactor_turn(w->s->reactor, 1);
  assert_int_equal(writer.listener.calls, 1);
  assert_int_equal(writer.listener.value, UV_DISCONNECT);
  assert_int_equal(ender.listener.calls, 1);
  unwatch(&writer);
  unwatch(&ender);
  close(fds[0]);
  close(fds[1]);
}

/* The next call will say what is wrong; libuv's EBADF would be a lie. */
static void test_an_error_reaches_every_proxy(void **state) {
  world_t *w = *state;
  watch_t writer, reader;
  int fds[2];

  assert_int_equal(pipe(fds), 0);
  watch(w, &reader, fds[1], UV_READABLE);
  close(fds[0]); /* nobody can read: POLLERR */
  watch(w, &writer, fds[1], UV_WRITABLE);
  vg__reactor_turn(w->s->reactor, 1);
  assert_int_equal(writer.listener.status, 0);
  assert_int_equal(writer.listener.value, UV_WRITABLE);
  assert_int_equal(reader.listener.calls, 1);
  assert_int_equal(reader.listener.status, 0);
  unwatch(&writer);
  unwatch(&reader);
  close(fds[1]);
}

static void take_all(listener_t *self, vg_event_t *event) {
  int *fds = self->data, i;
  char block[16];
  VG_UNUSED(event);
  for (i = 0; i < 2; i++)
    if (recv(fds[i], block, sizeof block, MSG_DONTWAIT) < 0) continue;
}

/* Both sockets are ready in one turn; who is told first takes all there is. */
static int told_without_data(world_t *w, int type) {
  watch_t a, b;
  int one[2], two[2], mine[2], told;

  assert_int_equal(socketpair(AF_UNIX, type, 0, one), 0);
  assert_int_equal(socketpair(AF_UNIX, type, 0, two), 0);
  mine[0] = one[0];
  mine[1] = two[0];
  watch(w, &a, one[0], UV_READABLE);
  watch(w, &b, two[0], UV_READABLE);
  a.listener.act = b.listener.act = take_all;
  a.listener.data = b.listener.data = mine;
  turn(w);
  assert_int_equal(write(one[1], "x", 1), 1);
  assert_int_equal(write(two[1], "x", 1), 1);
  turn(w);
  told = a.listener.calls + b.listener.calls;
  shutdown(one[1], SHUT_WR); /* the end is readable, and has no data */
  vg__reactor_turn(w->s->reactor, 1);
  if (type == SOCK_STREAM) assert_true(a.listener.calls > 0);
  unwatch(&a);
  unwatch(&b);
  close(one[0]);
  close(one[1]);
  close(two[0]);
  close(two[1]);
  return told;
}

static void test_streams_without_data_are_not_readable(void **state) {
  assert_int_equal(told_without_data(*state, SOCK_STREAM), 1); /* PL-04 */
}

static void test_datagrams_are_not_asked(void **state) {
  assert_int_equal(told_without_data(*state, SOCK_DGRAM), 2); /* PL-04 */
}

/* }================================================================= */


/*
** {== Descriptors that change behind a wait
*/

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void spend(world_t *w, unsigned ms) {
  uint64_t end = uv_hrtime() + ms * MS;
  while (uv_hrtime() < end) {
    vg__reactor_turn(w->s->reactor, 1);
    if (w->s->active == 0) uv_sleep(5);
  }
}

static void test_the_sweep_finds_a_closed_descriptor(void **state) {
  world_t *w = *state;
  watch_t a;
  double before;
  int fds[2];

  assert_int_equal(pipe(fds), 0); /* ruling 23, R84 */
  watch(w, &a, fds[0], UV_READABLE);
  turn(w);
  close(fds[0]);
  before = cpu_seconds();
  while (a.listener.calls == 0) vg__reactor_turn(w->s->reactor, 1);
  assert_true(cpu_seconds() - before < 0.05);
  assert_int_equal(a.listener.status, UV_EBADF);
  assert_true(a.proxy->event.flags & VG_EVENT_CLOSED);
  unwatch(&a);
  close(fds[1]);
}

/* Closed before libuv has been told of it at all: its epoll_ctl must not meet
** the number, or it aborts. */
static void test_closed_before_the_first_turn(void **state) {
  world_t *w = *state;
  watch_t a, b;
  struct stat now;
  int fds[2], file;

  assert_int_equal(pipe(fds), 0);
  watch(w, &a, fds[0], UV_READABLE);
  close(fds[0]);
  turn(w);
  unwatch(&a);

  watch(w, &b, fds[1], UV_WRITABLE);
  close(fds[1]);
  file = open("/dev/null", O_RDONLY); /* and cannot even be polled */
  while (file < fds[1]) file = dup(file);
  assert_int_equal(fstat(fds[1], &now), 0);
  turn(w);
  assert_int_equal(b.listener.status, UV_EBADF);
  unwatch(&b);
  for (file = fds[0]; file <= fds[1]; file++) close(file);
}

/* The file stays open as a duplicate, and has data: epoll goes on reporting a
** number that cannot be removed any more, if it was ever given it. */
static void test_a_duplicate_does_not_spin(void **state) {
  world_t *w = *state;
  watch_t a;
  double before;
  int fds[2], copy;

  assert_int_equal(pipe(fds), 0); /* R85 */
  watch(w, &a, fds[0], UV_READABLE);
  turn(w);
  copy = dup(fds[0]);
  close(fds[0]);
  assert_int_equal(write(fds[1], "x", 1), 1);
  before = cpu_seconds();
  spend(w, 1500);
  assert_true(cpu_seconds() - before < 0.05);
  assert_int_equal(a.listener.calls, 1);
  assert_int_equal(a.listener.status, UV_EBADF);
  unwatch(&a);
  before = cpu_seconds();
  spend(w, 500);
  assert_true(cpu_seconds() - before < 0.05);
  close(copy);
  close(fds[1]);
}

/* A is waited for, left, closed; B gets its number and is waited for; then A's
** proxy goes. */
static void test_a_late_drop_does_not_disturb_the_next(void **state) {
  world_t *w = *state;
  watch_t a, b;
  int one[2], two[2];

  assert_int_equal(pipe(one), 0); /* R11 */
  watch(w, &a, one[0], UV_READABLE);
  turn(w);
  vg_event_stop(&a.proxy->event);
  turn(w);
  assert_int_equal(pipe(two), 0);
  assert_int_equal(dup2(two[0], one[0]), one[0]);
  watch(w, &b, one[0], UV_READABLE);
  assert_ptr_not_equal(a.proxy->poll, b.proxy->poll);
  turn(w);
  unwatch(&a);
  turn(w);
  assert_int_equal(write(two[1], "x", 1), 1);
  vg__reactor_turn(w->s->reactor, 1);
  assert_int_equal(b.listener.calls, 1);
  assert_int_equal(b.listener.status, 0);
  unwatch(&b);
  close(one[0]);
  close(one[1]);
  close(two[0]);
  close(two[1]);
}

/* The same while A is still waited for: B's poll fails A's. */
static void test_a_new_poll_finds_the_stale_one(void **state) {
  world_t *w = *state;
  watch_t a, b;
  int one[2], two[2];

  assert_int_equal(pipe(one), 0); /* ruling 23 */
  watch(w, &a, one[0], UV_READABLE);
  turn(w);
  assert_int_equal(pipe(two), 0);
  assert_int_equal(dup2(two[0], one[0]), one[0]);
  watch(w, &b, one[0], UV_READABLE);
  assert_int_equal(a.listener.calls, 1);
  assert_int_equal(a.listener.status, UV_EBADF);
  assert_int_equal(write(two[1], "x", 1), 1);
  vg__reactor_turn(w->s->reactor, 1);
  assert_int_equal(b.listener.status, 0);
  assert_int_equal(b.listener.calls, 1);
  unwatch(&a);
  unwatch(&b);
  close(one[0]);
  close(one[1]);
  close(two[0]);
  close(two[1]);
}

/* Whoever is woken reads from the number: it must be what it waited for. */
static void test_nobody_is_woken_for_another_file(void **state) {
  world_t *w = *state;
  watch_t a;
  int one[2], two[2];

  assert_int_equal(pipe(one), 0); /* R84 */
  watch(w, &a, one[0], UV_READABLE);
  turn(w);
  assert_int_equal(write(one[1], "x", 1), 1);
  assert_int_equal(pipe(two), 0);
  assert_int_equal(dup2(two[0], one[0]), one[0]);
  vg__reactor_turn(w->s->reactor, 1);
  assert_int_equal(a.listener.status, UV_EBADF);
  unwatch(&a);
  close(one[0]);
  close(one[1]);
  close(two[0]);
  close(two[1]);
}

static void test_starting_on_a_lost_descriptor(void **state) {
  world_t *w = *state;
  listener_t listener;
  vg_poll_proxy_t *proxy;
  int fds[2];

  assert_int_equal(pipe(fds), 0);
  proxy = new_proxy(w, fds[0], UV_READABLE);
  listener_init(&listener);
  assert_int_equal(vg_event_add_callback(&proxy->event, &listener.base), 0);
  close(fds[0]);
  assert_int_equal(vg_event_start(&proxy->event), 0);
  assert_int_equal(listener.calls, 1); /* an outcome, here and now */
  assert_int_equal(listener.status, UV_EBADF);
  vg_event_stop(&proxy->event);
  assert_int_equal(w->s->active, 0);
  vg_event_del_callback(&proxy->event, &listener.base);
  vg_event_release(&proxy->event);
  close(fds[1]);
}

/* }================================================================= */


static void test_refused(void **state) {
  world_t *w = *state;
  vg_poll_proxy_t *proxy;
  vg_poll_t *poll;
  int file = open("/proc/self/exe", O_RDONLY), fds[2];

  assert_int_equal(vg_poll_open(w->s, -1, 0, &poll), UV_EBADF);
  assert_int_equal(vg_poll_open(w->s, 1 << 30, 0, &poll), UV_EBADF);
  assert_int_equal(vg_poll_open(w->s, file, 0, &poll), UV_EPERM);
  assert_null(w->s->reactor->polls);
  assert_int_equal(pipe(fds), 0);
  assert_int_equal(vg_poll_open(w->s, fds[0], 0, &poll), 0);
  assert_int_equal(vg_poll_proxy_new(poll, 0, &proxy), UV_EINVAL);
  assert_int_equal(vg_poll_proxy_new(poll, 64, &proxy), UV_EINVAL);
  vg_event_release(&poll->event);
  close(file);
  close(fds[0]);
  close(fds[1]);
}

static void test_the_file_stays_blocking(void **state) {
  world_t *w = *state;
  watch_t a;
  int fds[2];

  assert_int_equal(pipe(fds), 0);
  watch(w, &a, fds[0], UV_READABLE);
  turn(w);
  assert_int_equal(fcntl(fds[0], F_GETFL) & O_NONBLOCK, 0);
  unwatch(&a);
  close(fds[0]);
  close(fds[1]);
}

static void test_no_memory(void **state) {
  world_t *w = *state;
  vg_poll_t *poll;
  size_t call;
  int fds[2], err = UV_ENOMEM;

  assert_int_equal(pipe(fds), 0);
  for (call = 1; err == UV_ENOMEM; call++) {
    memory_fail_at(&w->memory, call);
    err = vg_poll_open(w->s, fds[0], 0, &poll);
    memory_fail_at(&w->memory, 0);
    assert_true(err == 0 || w->s->reactor->polls == NULL);
  }
  assert_int_equal(err, 0);
  assert_true(call > 3);
  vg_event_release(&poll->event);
  close(fds[0]);
  close(fds[1]);
}

static void test_the_scheduler_goes_first(void **state) {
  world_t *w = *state;
  watch_t a;
  int fds[2], before;

  assert_int_equal(pipe(fds), 0);
  before = count_open();
  watch(w, &a, fds[0], UV_READABLE);
  turn(w);
  unwatch(&a); /* closing, not closed */
  world_free(w);
  assert_true(count_open() < before); /* the loop's own, too */
  close(fds[0]);
  close(fds[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_each_proxy_has_its_own_mask),
      world_test(test_the_poll_goes_with_its_last_proxy),
      world_test(test_the_duplicate_lives_until_the_next_turn),
      world_test(test_close_fd),
      world_test(test_close_fd_of_a_reused_number),
      world_test(test_all_dropped_by_the_first),
      world_test(test_each_drops_the_next),
      world_test(test_everybody_stops_when_told),
      world_test(test_closed_in_its_own_callback),
      world_test(test_disconnect_reaches_every_proxy),
      world_test(test_an_error_reaches_every_proxy),
      world_test(test_streams_without_data_are_not_readable),
      world_test(test_datagrams_are_not_asked),
      world_test(test_the_sweep_finds_a_closed_descriptor),
      world_test(test_closed_before_the_first_turn),
      world_test(test_a_duplicate_does_not_spin),
      world_test(test_a_late_drop_does_not_disturb_the_next),
      world_test(test_a_new_poll_finds_the_stale_one),
      world_test(test_nobody_is_woken_for_another_file),
      world_test(test_starting_on_a_lost_descriptor),
      world_test(test_refused),
      world_test(test_the_file_stays_blocking),
      world_test(test_no_memory),
      world_test(test_the_scheduler_goes_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
