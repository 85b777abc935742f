/*
** poll.c: readiness of descriptors that belong to somebody else.
**
** All who wait on one descriptor share a vg_poll_t, and through it one
** uv_poll_t; each has a proxy with a mask of its own.
**
** The descriptor may be closed behind our back, and its number given to
** something else.  epoll says nothing then; worse, as long as any duplicate
** of the file is open it goes on reporting a number that can no longer be
** removed from it, and libuv aborts when it is to add a number that is not
** open.  So libuv is given a duplicate of our own, which nobody closes or
** reuses, and what the caller's number means is a separate question: `is_same`
** asks it before each wait, before each delivery, and once a second.
**
** That duplicate keeps the file open (a peer sees no end of file), so it lives
** only while somebody waits, and until the next turn of the loop: a coroutine
** that waits again meanwhile finds everything in place, at no cost.
*/

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "events.h"

#define SWEEP_NS 1000000000u
#define ALL_BITS (UV_READABLE | UV_WRITABLE | UV_DISCONNECT | UV_PRIORITIZED)

/* The polls of one scheduler, from the first to the last: the reference is
** theirs together.
**   - `prepare` runs while `unsettled` has elements: the last moment before
**     libuv waits;
**   - `sweep` is armed while `started` has elements. */
typedef struct vg_polls {
  vg_uv_event_t base;
  uv_prepare_t prepare;
  vg_alarm_t sweep;
  vg_link_t started;
  vg_link_t unsettled;
  vg_poll_t **slots; /* by descriptor */
  size_t size, count;
} vg_polls_t;

/* libuv's side of a poll, while it is open. */
typedef struct vg_poll_native {
  vg_uv_event_t base;
  uv_poll_t handle;
  vg_poll_t *poll; /* NULL once it closes */
  int fd;          /* the duplicate */
  int owned_fd;    /* the caller's, to be closed with it; -1: not ours */
  int mask;        /* what libuv watches for; 0: stopped */
  int is_stream;   /* a connected stream socket */
} vg_poll_native_t;

static const struct {
  int bit;
  char letter;
} letters[] = {{UV_READABLE, 'r'},
               {UV_WRITABLE, 'w'},
               {UV_DISCONNECT, 'd'},
               {UV_PRIORITIZED, 'p'}};

enum { BITS = sizeof letters / sizeof letters[0] };

const char *vg_poll_letters(int mask, char text[5]) {
  int i, used = 0;
  for (i = 0; i < BITS; i++)
    if (mask & letters[i].bit) text[used++] = letters[i].letter;
  text[used] = '\0';
  return text;
}

/* Whether the number still means what it meant when the poll was made. */
static int is_same(const vg_poll_t *poll) {
  struct stat now;
  return !poll->stale && fstat(poll->fd, &now) == 0 &&
         now.st_dev == poll->device && now.st_ino == poll->inode;
}

static void fail(vg_poll_t *poll, int err);


/*
** {== The native handle
*/

static void on_native_closed(uv_handle_t *handle) {
  vg_poll_native_t *n = handle->data;
  if (n->owned_fd >= 0) close(n->owned_fd);
  vg__uv_event_detach(&n->base);
}

/* libuv does not use the duplicate from uv_close on. */
static void native_shut(vg_uv_event_t *event) {
  vg_poll_native_t *n = (vg_poll_native_t *)event;

  if (uv_is_closing((uv_handle_t *)&n->handle)) return;
  if (n->poll != NULL) { /* the reactor goes before the poll */
    n->poll->native = NULL;
    n->poll = NULL;
    n->base.event.ref_count = 0;
  }
  uv_close((uv_handle_t *)&n->handle, on_native_closed);
  close(n->fd);
}

static const vg_event_methods_t native_methods = {
    .name = "poll handle",
    .dispose = vg__uv_event_dispose,
};

static int is_stream_socket(int fd) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &size) == 0 &&
         value == SOCK_STREAM;
}

static int duplicate(vg_reactor_t *r, int fd) {
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0 && errno == EMFILE) { /* some may be about to be closed */
    vg__polls_settle(r);
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  }
  return copy < 0 ? uv_translate_sys_error(errno) : copy;
}

/* uv_poll_init makes the file non-blocking, for all who have it open; it is
** not ours to change. */
static int init_handle(uv_loop_t *loop, vg_poll_native_t *n) {
  int flags = fcntl(n->fd, F_GETFL);
  int err = uv_poll_init(loop, &n->handle, n->fd);
  if (err == 0 && flags >= 0 && !(flags & O_NONBLOCK))
    fcntl(n->fd, F_SETFL, flags);
  return err;
}

static int open_native(vg_poll_t *poll) {
  vg_scheduler_t *s = poll->event.scheduler;
  vg_poll_native_t *n;
  int err;

  if (poll->native != NULL) return 0;
  n = vg__uv_event_new(s, sizeof *n, &native_methods, VG_EVENT_HIDDEN,
                       native_shut);
  if (n == NULL) return UV_ENOMEM;
  n->owned_fd = -1;
  n->fd = err = duplicate(s->reactor, poll->fd);
  if (err >= 0) {
    err = init_handle(s->reactor->loop, n);
    if (err < 0) close(n->fd);
  }
  if (err < 0) {
    vg_event_release(&n->base.event);
    return err;
  }
  n->handle.data = n;
  n->is_stream = is_stream_socket(n->fd);
  n->poll = poll;
  poll->native = n;
  vg__uv_event_attach(&n->base);
  return 0;
}

static void close_native(vg_poll_t *poll, int owned_fd) {
  vg_poll_native_t *n = poll->native;

  poll->native = NULL;
  n->poll = NULL;
  n->owned_fd = owned_fd;
  vg_event_release(&n->base.event);
}

/* }================================================================= */


/*
** {== What libuv is asked for
*/

static int wanted(const vg_poll_t *poll) {
  int mask = 0, i;
  for (i = 0; i < BITS; i++)
    if (poll->wanting[i] > 0) mask |= letters[i].bit;
  return mask;
}

static void count_mask(vg_poll_t *poll, int mask, int by) {
  int i;
  for (i = 0; i < BITS; i++)
    if (mask & letters[i].bit) poll->wanting[i] += (uint32_t)by;
}

static void on_ready(uv_poll_t *handle, int status, int events);

static int ask(vg_poll_t *poll, int mask) {
  vg_poll_native_t *n = poll->native;
  int err;

  if (n->mask == mask) return 0;
  err = uv_poll_start(&n->handle, mask, on_ready);
  n->mask = err == 0 ? mask : 0;
  return err;
}

static void settle(vg_poll_t *poll) {
  int mask = wanted(poll), err;

  if (vg_linked(&poll->unsettled)) vg_list_remove(&poll->unsettled);
  if (poll->native == NULL) return;
  if (mask == 0) {
    close_native(poll, -1);
  } else if ((err = ask(poll, mask)) < 0) {
    fail(poll, err);
  }
}

static void on_prepare(uv_prepare_t *prepare) {
  vg_polls_t *polls = prepare->data;
  vg__polls_settle(polls->base.reactor);
}

/* Settles it before libuv waits; at once where there may be no next turn. */
static void unsettle(vg_poll_t *poll) {
  vg_polls_t *polls = poll->polls;
  vg_reactor_t *r = polls->base.reactor;

  if (!poll->event.scheduler->running && r->owns_loop) {
    settle(poll);
    return;
  }
  if (vg_linked(&poll->unsettled)) return;
  if (vg_list_empty(&polls->unsettled))
    uv_prepare_start(&polls->prepare, on_prepare);
  vg_list_append(&polls->unsettled, &poll->unsettled);
}

void vg__polls_settle(vg_reactor_t *r) {
  vg_polls_t *polls = r->polls;

  if (polls == NULL) return;
  vg_event_add_ref(&polls->base.event);
  while (!vg_list_empty(&polls->unsettled))
    settle(VG_CONTAINER(polls->unsettled.next, vg_poll_t, unsettled));
  uv_prepare_stop(&polls->prepare);
  if (vg_list_empty(&polls->started))
    vg__timer_disarm(r->scheduler, &polls->sweep.node);
  vg_event_release(&polls->base.event);
}

/* }================================================================= */


/*
** {== Delivery
*/

/* A stream whose data somebody else has taken in the meantime is not readable;
** at its end it is.  Asking this way takes nothing, not even a pending error.
** (Datagrams may be empty, so they are not asked about.) */
static int has_data(const vg_poll_native_t *n) {
  struct pollfd now = {n->fd, POLLIN, 0};
  int count = 0;
  if (ioctl(n->fd, FIONREAD, &count) < 0 || count > 0) return 1;
  return poll(&now, 1, 0) != 0;
}

/* Who waits may leave, and its proxy may be closed or go, while another is
** told: see vg_list_move. */
static void deliver(vg_poll_t *poll, int events) {
  vg_link_t todo;

  vg_list_move(&todo, &poll->proxies);
  while (!vg_list_empty(&todo)) {
    vg_poll_proxy_t *proxy = VG_CONTAINER(todo.next, vg_poll_proxy_t, link);
    int matching = events & (proxy->mask | UV_DISCONNECT);
    vg_list_remove(&proxy->link);
    vg_list_append(&poll->proxies, &proxy->link);
    if (matching != 0) vg_event_notify(&proxy->event, 0, matching);
  }
}

/* The descriptor is lost: who waits is told, the poll is not found any more.
** Proxies that nobody waits for find out when somebody does. */
static void fail(vg_poll_t *poll, int err) {
  vg_polls_t *polls = poll->polls;
  size_t slot = (size_t)poll->fd;
  vg_link_t todo;

  vg_event_add_ref(&poll->event);
  poll->stale = 1;
  if (slot < polls->size && polls->slots[slot] == poll)
    polls->slots[slot] = NULL;
  vg_list_move(&todo, &poll->proxies);
  while (!vg_list_empty(&todo)) {
    vg_poll_proxy_t *proxy = VG_CONTAINER(todo.next, vg_poll_proxy_t, link);
    vg_list_remove(&proxy->link);
    vg_list_append(&poll->proxies, &proxy->link);
    proxy->error = err;
    vg__event_end(&proxy->event, err);
  }
  settle(poll);
  vg_event_release(&poll->event);
}

static void on_ready(uv_poll_t *handle, int status, int events) {
  vg_poll_native_t *n = handle->data;
  vg_poll_t *poll = n->poll;

  if (!is_same(poll)) {
    fail(poll, UV_EBADF);
    return;
  }
  vg_event_add_ref(&poll->event);
  if (status < 0) { /* POLLERR: libuv has stopped the handle */
    n->mask = 0;
    events = ALL_BITS & ~UV_DISCONNECT; /* the next call will say why */
    if (poll->wanting[2] > 0) events |= UV_DISCONNECT;
  } else if ((events & UV_READABLE) && n->is_stream && !has_data(n)) {
    events &= ~UV_READABLE;
  }
  deliver(poll, events);
  unsettle(poll);
  vg_event_release(&poll->event);
}

static void on_sweep(vg_alarm_t *alarm) {
  vg_polls_t *polls = VG_CONTAINER(alarm, vg_polls_t, sweep);
  vg_link_t todo;

  vg_event_add_ref(&polls->base.event);
  vg_list_move(&todo, &polls->started);
  while (!vg_list_empty(&todo)) {
    vg_poll_t *poll = VG_CONTAINER(todo.next, vg_poll_t, link);
    vg_list_remove(&poll->link);
    vg_list_append(&polls->started, &poll->link);
    if (!is_same(poll)) fail(poll, UV_EBADF);
  }
  if (!vg_list_empty(&polls->started)) /* cannot fail: its place was free */
    vg__timer_arm(polls->base.event.scheduler, &alarm->node,
                  uv_hrtime() + SWEEP_NS);
  vg_event_release(&polls->base.event);
}

void vg__polls_check(vg_scheduler_t *s, int fd) {
  vg_polls_t *polls = s->reactor->polls;
  vg_poll_t *poll;

  if (polls == NULL || fd < 0 || (size_t)fd >= polls->size) return;
  poll = polls->slots[fd];
  if (poll != NULL && !is_same(poll)) fail(poll, UV_EBADF);
}

/* }================================================================= */


/*
** {== The polls of a scheduler
*/

static void on_polls_closed(uv_handle_t *handle) {
  vg_polls_t *polls = handle->data;
  vg__uv_event_detach(&polls->base);
}

static void polls_shut(vg_uv_event_t *event) {
  vg_polls_t *polls = (vg_polls_t *)event;
  vg_scheduler_t *s = event->event.scheduler;

  if (uv_is_closing((uv_handle_t *)&polls->prepare)) return;
  event->reactor->polls = NULL;
  event->event.ref_count = 0; /* the reactor may go before the last poll */
  vg__free(s, polls->slots, polls->size * sizeof(*polls->slots));
  polls->slots = NULL;
  polls->size = 0;
  uv_close((uv_handle_t *)&polls->prepare, on_polls_closed);
}

static const vg_event_methods_t polls_methods = {
    .name = "polls",
    .dispose = vg__uv_event_dispose,
};

/* The scheduler's polls, with a slot for this descriptor. */
static int get_polls(vg_scheduler_t *s, int fd, vg_polls_t **result) {
  vg_polls_t *polls = s->reactor->polls;
  vg_poll_t **slots;
  size_t size;

  if (polls == NULL) {
    polls = vg__uv_event_new(s, sizeof *polls, &polls_methods, VG_EVENT_HIDDEN,
                             polls_shut);
    if (polls == NULL) return UV_ENOMEM;
    uv_prepare_init(s->reactor->loop, &polls->prepare); /* cannot fail */
    polls->prepare.data = polls;
    polls->sweep.node.kind = VG_NODE_CALL;
    polls->sweep.node.hidden = 1;
    polls->sweep.fire = on_sweep;
    vg_list_init(&polls->started);
    vg_list_init(&polls->unsettled);
    vg__uv_event_attach(&polls->base);
    s->reactor->polls = polls;
  }
  *result = polls;
  if ((size_t)fd < polls->size) return 0;
  for (size = 64; size <= (size_t)fd;) size *= 2;
  slots = vg__realloc(s, polls->slots, polls->size * sizeof *slots,
                      size * sizeof *slots);
  if (slots == NULL) return UV_ENOMEM;
  memset(slots + polls->size, 0, (size - polls->size) * sizeof *slots);
  polls->slots = slots;
  polls->size = size;
  return 0;
}

static void release_polls(vg_polls_t *polls) {
  if (polls->count > 0) return;
  vg__timer_disarm(polls->base.event.scheduler, &polls->sweep.node);
  vg_event_release(&polls->base.event);
}

/* }================================================================= */


/*
** {== Polls
*/

static void poll_dispose(vg_event_t *event) {
  vg_poll_t *poll = (vg_poll_t *)event;
  vg_polls_t *polls = poll->polls;
  size_t slot = (size_t)poll->fd;
  int owned = -1;

  if ((event->flags & VG_EVENT_CLOSE_FD) && is_same(poll)) owned = poll->fd;
  if (slot < polls->size && polls->slots[slot] == poll)
    polls->slots[slot] = NULL;
  if (vg_linked(&poll->unsettled)) vg_list_remove(&poll->unsettled);
  if (poll->native != NULL)
    close_native(poll, owned);
  else if (owned >= 0)
    close(owned);
  vg__free(event->scheduler, poll, sizeof *poll);
  polls->count--;
  release_polls(polls);
}

static const vg_event_methods_t poll_methods = {
    .name = "poll",
    .dispose = poll_dispose,
};

static int poll_new(vg_scheduler_t *s, vg_polls_t *polls, int fd,
                    uint32_t flags, vg_poll_t **result) {
  struct stat now;
  vg_poll_t *poll;
  int err;

  if (fstat(fd, &now) < 0) return uv_translate_sys_error(errno);
  poll = vg__alloc(s, sizeof *poll);
  if (poll == NULL) return UV_ENOMEM;
  memset(poll, 0, sizeof *poll);
  vg_event_init(&poll->event, s, &poll_methods, 0);
  vg_list_init(&poll->proxies);
  poll->polls = polls;
  poll->fd = fd;
  poll->device = now.st_dev;
  poll->inode = now.st_ino;
  polls->count++;
  err = open_native(poll); /* whether it can be polled at all */
  if (err < 0) {
    vg_event_release(&poll->event);
    return err;
  }
  poll->event.flags |= flags & VG_EVENT_CLOSE_FD;
  polls->slots[fd] = poll;
  unsettle(poll);
  *result = poll;
  return 0;
}

int vg_poll_open(vg_scheduler_t *s, int fd, uint32_t flags,
                 vg_poll_t **result) {
  vg_polls_t *polls;
  int err;

  if (fd < 0) return UV_EBADF;
  vg__polls_check(s, fd);
  if (fcntl(fd, F_GETFD) < 0) return UV_EBADF; /* nor let the table grow */
  err = get_polls(s, fd, &polls);
  if (err == 0 && polls->slots[fd] != NULL) {
    *result = polls->slots[fd];
    vg_event_add_ref(&(*result)->event);
    (*result)->event.flags |= flags & VG_EVENT_CLOSE_FD;
    return 0;
  }
  if (err == 0) {
    polls->count++; /* a poll that fails shall not take `polls` with it */
    err = poll_new(s, polls, fd, flags, result);
    polls->count--;
  }
  if (err < 0 && s->reactor->polls != NULL) release_polls(s->reactor->polls);
  return err;
}

/* }================================================================= */


/*
** {== Proxies
*/

int vg_poll_proxy_prepare(vg_poll_proxy_t *proxy) {
  vg_poll_t *poll = proxy->poll;
  int err;

  if (poll->native != NULL || (proxy->event.flags & VG_EVENT_CLOSED) ||
      !is_same(poll)) /* the start will say so */
    return 0;
  err = open_native(poll);
  if (err == 0) unsettle(poll);
  return err;
}

static int start_sweep(vg_polls_t *polls) {
  if (polls->sweep.node.index != 0) return 0;
  return vg__timer_arm(polls->base.event.scheduler, &polls->sweep.node,
                       uv_hrtime() + SWEEP_NS);
}

static int proxy_start(vg_event_t *event) {
  vg_poll_proxy_t *proxy = (vg_poll_proxy_t *)event;
  vg_poll_t *poll = proxy->poll;
  int err;

  if (!is_same(poll)) { /* an outcome like any other, here and now */
    fail(poll, UV_EBADF);
    proxy->error = UV_EBADF;
    vg__event_end(event, UV_EBADF);
    return 0;
  }
  err = start_sweep(poll->polls);
  if (err == 0) err = open_native(poll);
  if (err < 0) return err;
  count_mask(poll, proxy->mask, 1);
  if (wanted(poll) & ~poll->native->mask) err = ask(poll, wanted(poll));
  if (err < 0) {
    count_mask(poll, proxy->mask, -1);
    unsettle(poll);
    return err;
  }
  if (!vg_linked(&poll->link))
    vg_list_append(&poll->polls->started, &poll->link);
  vg_list_append(&poll->proxies, &proxy->link);
  return 0;
}

static void proxy_stop(vg_event_t *event) {
  vg_poll_proxy_t *proxy = (vg_poll_proxy_t *)event;
  vg_poll_t *poll = proxy->poll;

  if (!vg_linked(&proxy->link)) return; /* it never started */
  vg_list_remove(&proxy->link);
  count_mask(poll, proxy->mask, -1);
  if (wanted(poll) == 0) vg_list_remove(&poll->link);
  if (poll->native != NULL && wanted(poll) != poll->native->mask)
    unsettle(poll);
}

static int proxy_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_poll_proxy_t *proxy = (const vg_poll_proxy_t *)event;
  char text[5];

  return snprintf(buffer, size, "poll (descriptor %d, %s%s)", proxy->poll->fd,
                  vg_poll_letters(proxy->mask, text),
                  (event->flags & VG_EVENT_CLOSED) ? ", closed" : "");
}

static void proxy_dispose(vg_event_t *event) {
  vg_poll_proxy_t *proxy = (vg_poll_proxy_t *)event;
  vg_poll_t *poll = proxy->poll;

  vg_poll_proxy_close(proxy);
  vg__free(event->scheduler, proxy, sizeof *proxy);
  vg_event_release(&poll->event);
}

static const vg_event_methods_t proxy_methods = {
    .name = "poll",
    .start = proxy_start,
    .stop = proxy_stop,
    .dispose = proxy_dispose,
    .info = proxy_info,
};

int vg_poll_proxy_new(vg_poll_t *poll, int mask, vg_poll_proxy_t **result) {
  vg_scheduler_t *s = poll->event.scheduler;
  vg_poll_proxy_t *proxy;

  if (mask == 0 || (mask & ~ALL_BITS) != 0) return UV_EINVAL;
  proxy = vg__alloc(s, sizeof *proxy);
  if (proxy == NULL) return UV_ENOMEM;
  memset(proxy, 0, sizeof *proxy);
  vg_event_init(&proxy->event, s, &proxy_methods, 0);
  proxy->poll = poll;
  proxy->mask = mask;
  vg_event_add_ref(&poll->event);
  *result = proxy;
  return 0;
}

void vg_poll_proxy_close(vg_poll_proxy_t *proxy) {
  vg_poll_t *poll = proxy->poll;

  if (!(proxy->event.flags & VG_EVENT_CLOSED)) {
    proxy->error = VG_ECLOSED;
    vg__event_end(&proxy->event, VG_ECLOSED);
  }
  if (!poll->stale && !is_same(poll)) fail(poll, UV_EBADF);
}

/* }================================================================= */
