/*
** listen.c: a server socket as an event.
**
** The descriptor is watched by a uv_poll_t; when it is readable, everything
** that the kernel has ready is accepted into a bounded queue, and as many
** acceptors are woken.  So a burst is taken in few turns of the loop.  When
** the queue is full the rest stays with the kernel.
**
** Out of descriptors: watching stops, so nothing spins and no client is
** turned away.  The host is asked to collect what holds descriptors, then it
** is tried again, and again after a pause that grows.
*/

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io.h"

#define PAUSE_FIRST_NS 20000000u
#define PAUSE_LAST_NS 500000000u
#define RELIEVE_EVERY_NS 5000000000u
#define COMPLAIN_EVERY_NS 10000000000u

static vg_listen_t *of_incoming(const vg_event_t *event) {
  return VG_CONTAINER(event, vg_listen_t, incoming);
}

static int is_closed(const vg_listen_t *l) {
  return (l->base.event.flags & VG_EVENT_CLOSED) != 0;
}

/*
** {== Accepting
*/

static void ready(uv_poll_t *poll, int status, int events);

static void stop_polling(vg_listen_t *l) {
  if (!l->polling) return;
  l->polling = 0;
  uv_poll_stop(&l->poll);
}

static int start_polling(vg_listen_t *l) {
  int err;
  if (l->polling || l->scarce != 0 || is_closed(l)) return 0;
  err = uv_poll_start(&l->poll, UV_READABLE, ready);
  if (err == 0) l->polling = 1;
  return err;
}

/* Wakes an acceptor for each connection that is not promised yet. */
static void hand_out(vg_listen_t *l) {
  while (l->promised < l->count && !vg_list_empty(&l->acceptors)) {
    vg_wait_t *wait = VG_CONTAINER(l->acceptors.next, vg_wait_t, link);
    l->promised++;
    vg__waker_grant(wait->coroutine, wait, 0, &l->granted);
  }
}

static void push(vg_listen_t *l, int fd, const vg_address_t *peer) {
  vg_accepted_t *place = &l->queue[(l->head + l->count) % VG_LISTEN_QUEUE];
  place->fd = fd;
  place->peer = *peer;
  l->count++;
}

static void pop(vg_listen_t *l, vg_accepted_t *result) {
  *result = l->queue[l->head];
  l->head = (l->head + 1) % VG_LISTEN_QUEUE;
  l->count--;
}

static int is_scarce(int err) {
  return err == UV_EMFILE || err == UV_ENFILE || err == UV_ENOMEM ||
         err == UV_ENOBUFS;
}

/* What went wrong with one connection, not with the server. */
static int is_passing(int err) {
  return err == UV_ECONNABORTED || err == UV_EPROTO || err == UV_ENETDOWN ||
         err == UV_ENETUNREACH || err == UV_EHOSTUNREACH ||
         err == UV_ETIMEDOUT || err == UV_ECONNRESET;
}

/* Accepts what there is.  0, or why it had to stop before. */
static int accept_all(vg_listen_t *l) {
  vg_address_t peer;
  int passing = 0, err = 0;

  while (l->count < VG_LISTEN_QUEUE && passing < VG_LISTEN_QUEUE) {
    err = vg__socket_accept(l->fd, &peer);
    if (err >= 0) {
      push(l, err, &peer);
    } else if (is_passing(err)) {
      passing++;
    } else {
      break;
    }
  }
  hand_out(l);
  return err < 0 && err != UV_EAGAIN && !is_passing(err) ? err : 0;
}

/* The server's own failure is the next acceptor's. */
static void fail(vg_listen_t *l, int err) {
  stop_polling(l);
  l->status = err;
  if (!vg_list_empty(&l->acceptors)) {
    vg_wait_t *wait = VG_CONTAINER(l->acceptors.next, vg_wait_t, link);
    l->status = 0;
    vg_waker_wake(wait->coroutine, wait, err, 0);
  }
}

/* }================================================================= */


/*
** {== Scarce descriptors
*/

static void resume_accepting(vg_listen_t *l) {
  l->scarce = 0;
  l->pause_ns = PAUSE_FIRST_NS;
  if (l->count < VG_LISTEN_QUEUE && !vg_list_empty(&l->acceptors))
    start_polling(l);
}

static void pause_accepting(vg_listen_t *l) {
  vg__timer_arm(l->base.event.scheduler, &l->alarm.node,
                uv_hrtime() + l->pause_ns);
  l->pause_ns *= 2;
  if (l->pause_ns > PAUSE_LAST_NS) l->pause_ns = PAUSE_LAST_NS;
}

/* Not at every pause, and not when every second client goes at once. */
static void complain(vg_listen_t *l) {
  uint64_t now = uv_hrtime();

  if (l->complain == NULL) return;
  if (l->complained_ns != 0 && now - l->complained_ns < COMPLAIN_EVERY_NS)
    return;
  l->complained_ns = now;
  l->complain(l, l->scarce);
}

/* Tries again; whether that helped. */
static int retry(vg_listen_t *l) {
  uint32_t before = l->count;
  int err = accept_all(l);

  if (is_scarce(err)) {
    l->scarce = err;
    if (l->count > before) l->pause_ns = PAUSE_FIRST_NS;
    return 0;
  }
  resume_accepting(l);
  if (err < 0) fail(l, err);
  return 1;
}

/* Outside of libuv's callbacks: the host may run finalizers. */
static int relieve(vg_microtask_t *task) {
  vg_listen_t *l = VG_CONTAINER(task, vg_listen_t, task);

  if (is_closed(l) || l->scarce == 0) return 0;
  l->relieved_ns = uv_hrtime();
  if (l->relieve != NULL) l->relieve(l);
  if (is_closed(l) || retry(l)) return 0;
  pause_accepting(l);
  complain(l);
  return 0;
}

static void relieved(vg_microtask_t *task) {
  vg_event_release(&VG_CONTAINER(task, vg_listen_t, task)->base.event);
}

/* The queue of microtasks owns the server meanwhile. */
static void ask_relief(vg_listen_t *l) {
  if (l->task.queued) return;
  vg_event_add_ref(&l->base.event);
  l->task.run = relieve;
  l->task.dispose = relieved;
  l->task.ref_count = 0;
  vg_microtask_add(l->base.event.scheduler, &l->task);
}

static void out_of_descriptors(vg_listen_t *l, int err) {
  l->scarce = err;
  stop_polling(l);
  ask_relief(l);
}

static void try_later(vg_alarm_t *alarm) {
  vg_listen_t *l = VG_CONTAINER(alarm, vg_listen_t, alarm);

  if (is_closed(l) || retry(l)) return;
  if (uv_hrtime() - l->relieved_ns > RELIEVE_EVERY_NS)
    ask_relief(l);
  else
    pause_accepting(l);
}

/* }================================================================= */


static void ready(uv_poll_t *poll, int status, int events) {
  vg_listen_t *l = poll->data;
  int err = status;

  VG_UNUSED(events);
  if (err == 0) err = accept_all(l);
  if (is_scarce(err))
    out_of_descriptors(l, err);
  else if (err < 0)
    fail(l, err);
  else if (l->count == VG_LISTEN_QUEUE)
    stop_polling(l);
}


/*
** {== The events
*/

static int incoming_start(vg_event_t *event) {
  return start_polling(of_incoming(event));
}

static void incoming_del_callback(vg_event_t *event, vg_callback_t *cb) {
  vg_wait_t *wait = (vg_wait_t *)cb;
  VG_UNUSED(event);
  if (vg_linked(&wait->link)) vg_list_remove(&wait->link);
}

static void incoming_revoke(vg_event_t *event, vg_wait_t *wait) {
  vg_listen_t *l = of_incoming(event);
  vg_list_remove(&wait->link);
  l->promised--;
  hand_out(l);
}

void vg_listen_text(const vg_listen_t *l, char *buffer, size_t size) {
  if (l->kind == VG_IO_TCP)
    vg_address_text(&l->address, buffer, size);
  else
    snprintf(buffer, size, "%s%s", l->path[0] == '\0' ? "@" : "",
             l->path + (l->path[0] == '\0'));
}

static int listen_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_listen_t *l = (const vg_listen_t *)event;
  char text[160];

  vg_listen_text(l, text, sizeof text);
  return snprintf(buffer, size, "%s server %s (%s)",
                  l->kind == VG_IO_TCP ? "tcp" : "pipe", text,
                  is_closed(l)     ? "closed"
                  : l->scarce != 0 ? "out of descriptors"
                                   : "listening");
}

static int incoming_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_listen_t *l = of_incoming(event);
  char text[160];

  vg_listen_text(l, text, sizeof text);
  return snprintf(buffer, size, "%s server %s (accept%s)",
                  l->kind == VG_IO_TCP ? "tcp" : "pipe", text,
                  l->scarce != 0 ? ", out of descriptors" : "");
}

static void incoming_dispose(vg_event_t *event) { VG_UNUSED(event); }

static int listen_replay(vg_event_t *event, vg_callback_t *callback) {
  if (!(event->flags & VG_EVENT_CLOSED)) return 0;
  if (callback != NULL) callback->notify(callback, event, 0, 0);
  return 1;
}

static void listen_dispose(vg_event_t *event) {
  vg_listen_t *l = (vg_listen_t *)event;
  vg_listen_close(l);
  if (!vg_linked(&l->base.link)) free(l);
}

static const vg_event_methods_t incoming_methods = {
    .name = "accept",
    .del_callback = incoming_del_callback,
    .start = incoming_start,
    .dispose = incoming_dispose,
    .info = incoming_info,
    .revoke = incoming_revoke,
};

static const vg_event_methods_t listen_methods = {
    .name = "listen",
    .replay = listen_replay,
    .dispose = listen_dispose,
    .info = listen_info,
};

/* }================================================================= */


/*
** {== Closing
*/

static void poll_closed(uv_handle_t *handle) {
  vg_listen_t *l = handle->data;
  free(l->path);
  l->path = NULL;
  vg__uv_event_detach(&l->base);
}

/* The path goes first: another server may take it from then on. */
static void release_socket(vg_listen_t *l) {
  vg_accepted_t accepted;

  if (l->path != NULL && l->path[0] != '\0') unlink(l->path);
  if (l->fd >= 0) vg__socket_close(l->fd);
  l->fd = -1;
  while (l->count > 0) {
    pop(l, &accepted);
    vg__socket_close(accepted.fd);
  }
}

static void listen_shut(vg_uv_event_t *event) {
  vg_listen_t *l = (vg_listen_t *)event;

  if (uv_is_closing((uv_handle_t *)&l->poll)) return;
  stop_polling(l);
  if (!event->event.scheduler->closed)
    vg__timer_disarm(event->event.scheduler, &l->alarm.node);
  uv_close((uv_handle_t *)&l->poll, poll_closed);
  release_socket(l);
}

void vg_listen_close(vg_listen_t *l) {
  if (is_closed(l)) return;
  vg_event_notify_and_close(&l->base.event, 0, 0);
  while (!vg_list_empty(&l->acceptors)) {
    vg_wait_t *wait = VG_CONTAINER(l->acceptors.next, vg_wait_t, link);
    vg_waker_wake(wait->coroutine, wait, VG_ECLOSED, 0);
  }
  if (vg_linked(&l->base.link)) listen_shut(&l->base);
}

/* }================================================================= */


static vg_listen_t *new_listen(vg_scheduler_t *s, int kind) {
  vg_listen_t *l =
      vg__uv_event_new(s, sizeof *l, &listen_methods, 0, listen_shut);

  if (l == NULL) return NULL;
  vg_event_init(&l->incoming, s, &incoming_methods, 0);
  vg_list_init(&l->acceptors);
  vg_list_init(&l->granted);
  l->alarm.node.kind = VG_NODE_CALL;
  l->alarm.node.hidden = 1;
  l->alarm.fire = try_later;
  l->pause_ns = PAUSE_FIRST_NS;
  l->kind = (uint8_t)kind;
  l->fd = -1;
  return l;
}

/* Takes over `fd` and `l`. */
static int watch(vg_listen_t *l, int fd, vg_listen_t **result) {
  int err = fd;

  if (fd >= 0) {
    l->fd = fd;
    err = uv_poll_init(l->base.reactor->loop, &l->poll, fd);
  }
  if (err < 0) {
    release_socket(l);
    free(l->path);
    free(l);
    return err;
  }
  l->poll.data = l;
  vg__uv_event_attach(&l->base);
  *result = l;
  return 0;
}

int vg_listen_new(vg_scheduler_t *s, const vg_address_t *address,
                  const vg_listen_options_t *options, vg_listen_t **result) {
  vg_listen_t *l = new_listen(s, VG_IO_TCP);
  int fd;

  if (l == NULL) return UV_ENOMEM;
  fd = vg__socket_listen(address, options);
  l->address = *address;
  if (fd >= 0) vg__socket_address(fd, &l->address); /* the port given for 0 */
  return watch(l, fd, result);
}

int vg_listen_new_path(vg_scheduler_t *s, const char *path, size_t length,
                       const vg_listen_options_t *options,
                       vg_listen_t **result) {
  vg_listen_t *l = new_listen(s, VG_IO_PIPE);
  int fd;

  if (l == NULL) return UV_ENOMEM;
  fd = vg__socket_listen_path(path, length, options->backlog);
  if (fd >= 0) { /* only now is it ours to remove */
    l->path = malloc(length + 1);
    if (l->path == NULL) {
      if (path[0] != '\0') unlink(path);
      vg__socket_close(fd);
      fd = UV_ENOMEM;
    } else {
      memcpy(l->path, path, length);
      l->path[length] = '\0';
      l->path_length = (uint32_t)length;
    }
  }
  return watch(l, fd, result);
}

int vg_listen_take(vg_listen_t *l, vg_accepted_t *result) {
  int err = l->status;

  if (is_closed(l)) return VG_ECLOSED;
  if (l->count > l->promised) {
    pop(l, result);
    return 1;
  }
  l->status = 0;
  return err;
}

int vg_listen_wait(vg_listen_t *l, vg_coroutine_t *co) {
  vg_wait_t *wait = vg__waker_wait(co, &l->incoming);
  if (wait == NULL) return UV_ENOMEM;
  vg_list_append(&l->acceptors, &wait->link);
  return 0;
}

int vg_listen_granted(vg_listen_t *l, vg_accepted_t *result) {
  l->promised--;
  if (is_closed(l)) return VG_ECLOSED;
  pop(l, result);
  return 1;
}
