/*
** io.c: the I/O handle: its states, who waits on it, how it ends.
**
** A handle that is closed while acknowledged bytes are still on their way
** lives on without its users until libuv has taken them (FLUSHING).  The same
** happens when the last reference goes without a close.
*/

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "events.h"
#include "io.h"

static const vg_io_limits_t default_limits = {VG_IO_LINGER_S, VG_IO_HIGH_WATER,
                                              VG_IO_MAX_LINE, VG_IO_MAX_ALL};

/*
** {== The events inside
*/

static vg_io_t *io_of_input(const vg_event_t *event) {
  return VG_CONTAINER(event, vg_io_t, input);
}

static vg_io_t *io_of_output(const vg_event_t *event) {
  return VG_CONTAINER(event, vg_io_t, output);
}

/* They live in the handle and go with it. */
static void inner_dispose(vg_event_t *event) { VG_UNUSED(event); }

static int input_start(vg_event_t *event) {
  vg_io_t *io = io_of_input(event);
  return io->state == VG_IO_OPEN ? vg__stream_arm(io) : 0;
}

static void input_del_callback(vg_event_t *event, vg_callback_t *cb) {
  VG_UNUSED(cb);
  io_of_input(event)->reader = NULL;
}

static int describe(const vg_io_t *io, const char *what, char *buffer,
                    size_t size) {
  char peer[128];
  vg_io_peer_text(io, peer, sizeof peer);
  return snprintf(buffer, size, "%s %s (%s)",
                  io->kind == VG_IO_TCP ? "tcp" : "pipe", peer, what);
}

static int input_info(const vg_event_t *event, char *buffer, size_t size) {
  static const char *const modes[] = {"read", "read bytes", "read line",
                                      "read until", "read all"};
  const vg_io_t *io = io_of_input(event);
  return describe(io,
                  io->state == VG_IO_OPENING ? "connect" : modes[io->want.mode],
                  buffer, size);
}

static int output_start(vg_event_t *event) {
  return vg__stream_start_writer(io_of_output(event));
}

static void output_del_callback(vg_event_t *event, vg_callback_t *cb) {
  vg__stream_drop_writer(io_of_output(event), cb);
}

static int output_info(const vg_event_t *event, char *buffer, size_t size) {
  return describe(io_of_output(event), "write", buffer, size);
}

static const vg_event_methods_t input_methods = {
    .name = "read",
    .del_callback = input_del_callback,
    .start = input_start,
    .dispose = inner_dispose,
    .info = input_info,
};

static const vg_event_methods_t output_methods = {
    .name = "write",
    .del_callback = output_del_callback,
    .start = output_start,
    .dispose = inner_dispose,
    .info = output_info,
};

/* }================================================================= */


/*
** {== The handle as an event
*/

static int io_replay(vg_event_t *event, vg_callback_t *callback) {
  if (!(event->flags & VG_EVENT_CLOSED)) return 0;
  if (callback != NULL) callback->notify(callback, event, 0, 0);
  return 1;
}

static int io_info(const vg_event_t *event, char *buffer, size_t size) {
  static const char *const states[] = {"connecting", "open", "closing",
                                       "closed", "closed"};
  const vg_io_t *io = (const vg_io_t *)event;
  return describe(io, states[io->state], buffer, size);
}

static void io_dispose(vg_event_t *event) {
  vg_io_t *io = (vg_io_t *)event;
  vg_io_close(io);
  if (!vg_linked(&io->base.link)) free(io);
}

/* The reactor goes: nobody waits any more. */
static void io_shut(vg_uv_event_t *event) {
  vg_io_t *io = (vg_io_t *)event;
  if (io->state < VG_IO_CLOSING) vg__io_finish(io, 0);
}

static const vg_event_methods_t io_methods = {
    .name = "io",
    .replay = io_replay,
    .dispose = io_dispose,
    .info = io_info,
};

/* }================================================================= */


int vg_io_new(vg_scheduler_t *s, int kind, vg_io_t **result) {
  vg_io_t *io = vg__uv_event_new(s, sizeof *io, &io_methods, 0, io_shut);

  if (io == NULL) return UV_ENOMEM;
  vg_event_init(&io->input, s, &input_methods, 0);
  vg_event_init(&io->output, s, &output_methods, 0);
  vg_list_init(&io->writers);
  io->limits = &default_limits;
  io->kind = (uint8_t)kind;
  io->state = VG_IO_OPENING;
  if (kind == VG_IO_TCP) /* neither can fail */
    uv_tcp_init(s->reactor->loop, &io->uv.tcp);
  else
    uv_pipe_init(s->reactor->loop, &io->uv.pipe, 0);
  io->uv.handle.data = io;
  vg__uv_event_attach(&io->base);
  *result = io;
  return 0;
}

int vg_io_open(vg_io_t *io, int fd, const vg_address_t *peer, char *path) {
  int err = io->kind == VG_IO_TCP ? uv_tcp_open(&io->uv.tcp, fd)
                                  : uv_pipe_open(&io->uv.pipe, fd);
  if (err < 0) return err;
  if (io->kind == VG_IO_PIPE)
    io->name.path = path;
  else if (peer != NULL)
    io->name.peer = *peer;
  io->state = VG_IO_OPEN;
  return 0;
}


/*
** {== Connecting.  The one who connects waits on `input`.
*/

static void connected(vg_io_t *io, int status) {
  if (status < 0)
    io->read_status = io->write_status = status;
  else
    io->state = VG_IO_OPEN;
  vg__io_wake_reader(io);
}

static void tcp_connected(uv_connect_t *request, int status) {
  vg_io_t *io = request->handle->data;
  free(request);
  if (io->state == VG_IO_OPENING) connected(io, status);
}

int vg_io_connect(vg_io_t *io, const vg_address_t *address,
                  const vg_address_t *local) {
  uv_connect_t *request;
  int err;

  io->name.peer = *address;
  if (local != NULL) {
    err = uv_tcp_bind(&io->uv.tcp, &local->any, 0);
    if (err < 0) return err;
  }
  request = malloc(sizeof *request);
  if (request == NULL) return UV_ENOMEM;
  err = uv_tcp_connect(request, &io->uv.tcp, &address->any, tcp_connected);
  if (err < 0) free(request);
  return err;
}

/* First and last pause before a full backlog is tried again. */
#define RETRY_FIRST_NS 1000000u
#define RETRY_LAST_NS 50000000u

static void end_retry(vg_io_t *io) {
  vg_retry_t *retry = io->side.retry;
  vg_scheduler_t *s = io->base.event.scheduler;

  if (retry == NULL) return;
  io->side.retry = NULL;
  if (!s->closed) vg__timer_disarm(s, &retry->alarm.node);
  if (retry->fd >= 0) vg__socket_close(retry->fd);
  free(retry);
}

/* Tries; arms the alarm where the backlog is full. */
static int try_path(vg_io_t *io) {
  vg_retry_t *retry = io->side.retry;
  int err = vg__socket_connect(retry->fd, retry->address, retry->length);

  if (err == UV_EAGAIN) {
    uint64_t due_ns = uv_hrtime() + retry->pause_ns;
    if (retry->pause_ns < RETRY_LAST_NS) retry->pause_ns *= 2;
    return vg__timer_arm(io->base.event.scheduler, &retry->alarm.node, due_ns);
  }
  if (err == 0) {
    err = uv_pipe_open(&io->uv.pipe, retry->fd);
    if (err == 0) retry->fd = -1;
  }
  if (err < 0) return err;
  end_retry(io);
  io->state = VG_IO_OPEN;
  return 0;
}

static void retry_fired(vg_alarm_t *alarm) {
  vg_io_t *io = VG_CONTAINER(alarm, vg_retry_t, alarm)->io;
  int err = try_path(io);
  if (err < 0 || io->state == VG_IO_OPEN) {
    end_retry(io);
    connected(io, err);
  }
}

/* The kernel takes a connection to a unix socket at once or not at all. */
int vg_io_connect_path(vg_io_t *io, const char *path, size_t length) {
  vg_retry_t *retry = calloc(1, sizeof *retry);
  int err;

  if (retry == NULL) return UV_ENOMEM;
  retry->io = io;
  retry->alarm.node.kind = VG_NODE_CALL;
  retry->alarm.node.hidden = 1;
  retry->alarm.fire = retry_fired;
  retry->pause_ns = RETRY_FIRST_NS;
  retry->fd = -1;
  io->side.retry = retry;
  err = vg__socket_path(path, length, retry->address, sizeof retry->address);
  if (err > 0) {
    retry->length = (uint32_t)err;
    err = retry->fd = vg__socket_unix();
  }
  if (err >= 0) err = try_path(io);
  if (err < 0) {
    end_retry(io);
    return err;
  }
  io->name.path = malloc(length + 1); /* only for messages */
  if (io->name.path != NULL) {
    memcpy(io->name.path, path, length);
    io->name.path[length] = '\0';
    if (length > 0 && path[0] == '\0') io->name.path[0] = '@';
  }
  return 0;
}

/* }================================================================= */


/*
** {== Reading
*/

static int wait_input(vg_io_t *io, vg_coroutine_t *co) {
  io->reader = vg__waker_wait(co, &io->input);
  return io->reader != NULL ? 0 : UV_ENOMEM;
}

int vg_io_wait_connected(vg_io_t *io, vg_coroutine_t *co) {
  return wait_input(io, co);
}

int vg__io_look(vg_io_t *io, const vg_want_t *want, vg_found_t *found) {
  if (vg__io_is_closed(io)) return VG_ECLOSED;
  if (want != &io->want) {
    if (io->reading) return UV_EBUSY;
    io->scanned = 0;
  }
  return vg__buffer_find(&io->buffer, want, io->read_status, &io->scanned,
                         found);
}

int vg_io_wait_read(vg_io_t *io, vg_coroutine_t *co, const vg_want_t *want) {
  int err = wait_input(io, co);
  if (err < 0) return err;
  io->want = *want; /* io->scanned is for this search, just made */
  io->reading = 1;
  return 0;
}

void vg_io_consume(vg_io_t *io, size_t size) {
  vg__buffer_consume(&io->buffer, size);
  io->scanned = 0;
  io->stalled = 0;
}

/* }================================================================= */


/*
** {== Closing
*/

/* Everybody who waits is told.  (They find the handle closed.) */
static void close_to_users(vg_io_t *io) {
  vg_event_notify_and_close(&io->base.event, 0, 0);
  vg__stream_disarm(io);
  vg__buffer_clear(&io->buffer);
  vg__io_wake_reader(io);
  vg__stream_wake_writers(io);
  if (io->state == VG_IO_OPENING)
    end_retry(io);
  else if (io->side.ending != NULL)
    vg_event_notify(&io->side.ending->event, 0, 0);
}

static size_t left_to_send(const vg_io_t *io) {
  return uv_stream_get_write_queue_size(&io->uv.stream) +
         (io->pending != NULL ? io->pending->length : 0);
}

static int look_later(vg_linger_t *linger) {
  vg_io_t *io = linger->io;
  linger->left = left_to_send(io);
  return vg__timer_arm(io->base.event.scheduler, &linger->alarm.node,
                       vg__deadline(io->limits->linger_s));
}

/* A peer that takes nothing does not keep the descriptor for ever. */
static void look_at_peer(vg_alarm_t *alarm) {
  vg_linger_t *linger = VG_CONTAINER(alarm, vg_linger_t, alarm);
  if (linger->left == left_to_send(linger->io) || look_later(linger) < 0)
    vg__io_finish(linger->io, 1);
}

static void end_linger(vg_io_t *io) {
  vg_scheduler_t *s = io->base.event.scheduler;
  if (io->linger == NULL) return;
  if (!s->closed) vg__timer_disarm(s, &io->linger->alarm.node);
  free(io->linger);
  io->linger = NULL;
}

/* Without memory for it there is no limit. */
static void start_linger(vg_io_t *io) {
  io->linger = calloc(1, sizeof *io->linger);
  if (io->linger == NULL) return;
  io->linger->io = io;
  io->linger->alarm.node.kind = VG_NODE_CALL;
  io->linger->alarm.node.hidden = 1;
  io->linger->alarm.fire = look_at_peer;
  if (look_later(io->linger) < 0) end_linger(io);
}

void vg_io_close(vg_io_t *io) {
  if (vg__io_is_closed(io)) return;
  close_to_users(io);
  if (io->sending != NULL) {
    io->state = VG_IO_FLUSHING; /* io_stream.c finishes */
    if (!io->base.event.scheduler->closed) start_linger(io);
  } else {
    vg__io_finish(io, 0);
  }
}

void vg_io_abort(vg_io_t *io) {
  if (io->state >= VG_IO_CLOSING) return;
  if (!vg__io_is_closed(io)) close_to_users(io);
  vg__io_finish(io, 1);
}

/* Called in libuv's close callback; it may free the handle. */
static void closed(uv_handle_t *handle) {
  vg_io_t *io = handle->data;

  io->state = VG_IO_CLOSED;
  free(io->side.ending);
  io->side.ending = NULL;
  if (io->kind == VG_IO_PIPE) {
    free(io->name.path);
    io->name.path = NULL;
  }
  if (io->limits != &default_limits) free((void *)(uintptr_t)io->limits);
  io->limits = &default_limits;
  vg__buffer_clear(&io->buffer);
  vg__uv_event_detach(&io->base);
}

/* A poll of the same descriptor watches a duplicate of it: it hears of the end
** from here, so that the peer does, too. */
static void tell_polls(vg_io_t *io, uv_os_fd_t fd) {
  vg_reactor_t *r = io->base.reactor;
  if (!r->closing && vg__reactor_alive(r)) vg__polls_check(r->scheduler, fd);
}

void vg__io_finish(vg_io_t *io, int reset) {
  uv_os_fd_t fd;
  int has_fd = uv_fileno(&io->uv.handle, &fd) == 0;

  if (io->state == VG_IO_OPENING) end_retry(io);
  end_linger(io);
  io->state = VG_IO_CLOSING;
  free(io->pending);
  io->pending = NULL;
  if (reset && io->kind == VG_IO_TCP &&
      uv_tcp_close_reset(&io->uv.tcp, closed) == 0) {
    if (has_fd) tell_polls(io, fd);
    return;
  }
  uv_close(&io->uv.handle, closed);
  if (has_fd) tell_polls(io, fd);
}

void vg_io_hide(vg_io_t *io) {
  vg_event_hide(&io->base.event);
  vg_event_hide(&io->input);
  vg_event_hide(&io->output);
  if (io->state != VG_IO_OPENING && io->side.ending != NULL)
    vg_event_hide(&io->side.ending->event);
  if (io->counted) {
    io->counted = 0;
    vg__deactivate(io->base.event.scheduler);
  }
}

/* }================================================================= */


vg_io_limits_t *vg_io_own_limits(vg_io_t *io) {
  if (io->limits == &default_limits) {
    vg_io_limits_t *own = malloc(sizeof *own);
    if (own == NULL) return NULL;
    *own = default_limits;
    io->limits = own;
  }
  return (vg_io_limits_t *)(uintptr_t)io->limits;
}

void vg_io_peer_text(const vg_io_t *io, char *buffer, size_t size) {
  if (io->kind == VG_IO_TCP)
    vg_address_text(&io->name.peer, buffer, size);
  else
    snprintf(buffer, size, "%s",
             io->name.path != NULL ? io->name.path : "(unnamed)");
}
