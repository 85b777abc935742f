/*
** io_stream.c: reading and writing of a handle that is a uv_stream_t.
**
** Reading stays armed from the first read on: a message costs no start and
** stop.  Bytes land in the reactor's scratch memory and are copied, right
** sized, into the handle's buffer; the reader is woken when its request can
** be answered.  When the buffer is full and nobody wants more, input is
** refused twice before reading stops: a reader that is about to run usually
** comes in between.
**
** Writing tries the socket first.  What does not fit is copied: up to the
** high-water mark for a write that returns at once, piece by piece for one
** that waits.  One request is with libuv at a time; what comes meanwhile is
** collected in the next one.
*/

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"

/* What a waiting write puts into one request.  Its completion says that the
** socket takes more, and then the rest goes straight from the writer's bytes:
** copying more than this would gain nothing. */
#define PIECE 16384

/* Buffers that hold as much are read into directly. */
#define DIRECT_FROM 32768
#define DIRECT_SIZE 65536

/*
** {== Reading
*/

static int is_full(const vg_io_t *io) {
  return io->reader == NULL && vg__buffer_length(&io->buffer) > 0 &&
         vg__buffer_length(&io->buffer) >= io->limits->high_water;
}

static void allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
  vg_io_t *io = handle->data;
  vg_buffer_t *b = &io->buffer;

  VG_UNUSED(suggested);
  if (is_full(io)) {
    *buf = uv_buf_init(NULL, 0);
  } else if (vg__buffer_length(b) < DIRECT_FROM ||
             vg__buffer_reserve(b, DIRECT_SIZE) < 0) {
    vg_reactor_t *r = io->base.reactor;
    *buf = uv_buf_init(r->scratch, sizeof r->scratch);
  } else {
    *buf = uv_buf_init(b->data + b->end, DIRECT_SIZE);
  }
}

/* Keeps n bytes that libuv put at `data`. */
static int keep(vg_io_t *io, const char *data, size_t n) {
  if (data != io->base.reactor->scratch) {
    io->buffer.end += n;
    return 0;
  }
  return vg__buffer_append(&io->buffer, data, n);
}

/* Whether the reader would not wait any more. */
static int is_satisfied(vg_io_t *io) {
  vg_found_t found;
  return io->want.mode == VG_READ_SOME ||
         vg__buffer_find(&io->buffer, &io->want, io->read_status, &io->scanned,
                         &found) != 0;
}

static void received(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  vg_io_t *io = stream->data;

  if (n == 0) return;
  if (n == UV_ENOBUFS) { /* from `allocate` */
    if (io->stalled) vg__stream_disarm(io);
    io->stalled = 1;
    return;
  }
  if (n > 0) {
    int err = keep(io, buf->base, (size_t)n);
    if (err < 0) io->read_status = err;
  } else {
    io->read_status = (int)n;
  }
  if (io->read_status != 0) vg__stream_disarm(io);
  if (io->reader != NULL && is_satisfied(io)) vg__io_wake_reader(io);
}

int vg__stream_arm(vg_io_t *io) {
  int err;
  if (io->armed || io->read_status != 0) return 0;
  err = uv_read_start(&io->uv.stream, allocate, received);
  if (err < 0) return err;
  io->armed = 1;
  return 0;
}

void vg__stream_disarm(vg_io_t *io) {
  if (!io->armed) return;
  io->armed = 0;
  uv_read_stop(&io->uv.stream);
}

/* }================================================================= */


/*
** {== The queue
*/

size_t vg_io_queued(const vg_io_t *io) {
  return (io->sending != NULL ? io->sending->length : 0) +
         (io->pending != NULL ? io->pending->length : 0);
}

static void sent(uv_write_t *request, int status);

/* While a request is under way the program has something to do. */
static void count(vg_io_t *io) {
  int active = io->sending != NULL && !(io->base.event.flags & VG_EVENT_HIDDEN);
  if (active == (int)io->counted || !vg__reactor_alive(io->base.reactor))
    return;
  io->counted = active ? 1 : 0;
  if (active)
    vg__activate(io->base.event.scheduler);
  else
    vg__deactivate(io->base.event.scheduler);
}

/* Gives what is pending to libuv. */
static int submit(vg_io_t *io) {
  vg_chunk_t *chunk = io->pending;
  uv_buf_t buf = uv_buf_init(chunk->data, (unsigned)chunk->length);
  int err;

  io->pending = NULL;
  chunk->io = io;
  err = uv_write(&chunk->request, &io->uv.stream, &buf, 1, sent);
  if (err < 0) {
    free(chunk);
    return err;
  }
  io->sending = chunk;
  count(io);
  return 0;
}

/* Copies bytes to the end of the queue. */
static int enqueue(vg_io_t *io, const char *data, size_t size) {
  vg_chunk_t *chunk = io->pending;
  size_t length = chunk != NULL ? chunk->length : 0;

  if (chunk == NULL || chunk->capacity - length < size) {
    size_t capacity = length + size;
    if (chunk != NULL && capacity < 2 * chunk->capacity)
      capacity = 2 * chunk->capacity;
    chunk = realloc(chunk, offsetof(vg_chunk_t, data) + capacity);
    if (chunk == NULL) return UV_ENOMEM;
    chunk->capacity = capacity;
    io->pending = chunk;
  }
  memcpy(chunk->data + length, data, size);
  chunk->length = length + size;
  return io->sending != NULL ? 0 : submit(io);
}

/* }================================================================= */


/*
** {== Writers that wait
*/

static vg_writer_t *first_writer(const vg_io_t *io) {
  return VG_CONTAINER(io->writers.next, vg_writer_t, link);
}

static void wake_writer(vg_writer_t *writer) {
  vg_wait_t *wait = writer->wait;
  writer->wait = NULL;
  vg_list_remove(&writer->link);
  vg_waker_wake(wait->coroutine, wait, 0, 0);
}

/* How far each got, and why no further, they find out for themselves. */
void vg__stream_wake_writers(vg_io_t *io) {
  while (!vg_list_empty(&io->writers)) wake_writer(first_writer(io));
}

static void fail(vg_io_t *io, int err) {
  if (io->write_status == 0) io->write_status = err;
  free(io->pending);
  io->pending = NULL;
  vg__stream_wake_writers(io);
}

static void advance(vg_writer_t *writer, size_t n) {
  writer->data += n;
  writer->left -= n;
}

/* Moves bytes of the first writer on; 0: it has to wait. */
static int feed_one(vg_io_t *io, int try_first) {
  vg_writer_t *writer = first_writer(io);
  size_t queued, room, piece;
  int err;

  if (try_first && io->sending == NULL) {
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)writer->data,
                               writer->left < INT32_MAX ? (unsigned)writer->left
                                                        : (unsigned)INT32_MAX);
    int n = uv_try_write(&io->uv.stream, &buf, 1);
    if (n > 0) advance(writer, (size_t)n);
    if (n < 0 && n != UV_EAGAIN) return n;
  }
  queued = vg_io_queued(io);
  room = queued < io->limits->high_water ? io->limits->high_water - queued : 0;
  if (writer->left <= room)
    piece = writer->left;
  else if (queued > 0)
    return 0;
  else
    piece = writer->left < PIECE ? writer->left : PIECE;
  if (piece > 0) {
    err = enqueue(io, writer->data, piece);
    if (err < 0) return err;
    advance(writer, piece);
  }
  if (writer->left > 0) return 0;
  wake_writer(writer);
  return 1;
}

static void feed(vg_io_t *io, int try_first) {
  while (!vg_list_empty(&io->writers)) {
    int err = feed_one(io, try_first);
    if (err < 0) fail(io, err);
    if (err == 0) return;
  }
}

int vg__stream_start_writer(vg_io_t *io) {
  if (io->sending == NULL) feed(io, 0); /* it has just been tried */
  return 0;
}

void vg__stream_drop_writer(vg_io_t *io, const vg_callback_t *cb) {
  vg_link_t *link;

  for (link = io->writers.next; link != &io->writers; link = link->next) {
    vg_writer_t *writer = VG_CONTAINER(link, vg_writer_t, link);
    if (&writer->wait->base != cb) continue;
    writer->wait = NULL;
    vg_list_remove(link);
    if (writer->left > 0 && writer->left < writer->total) vg__io_cut(io);
    return;
  }
}

void vg__io_cut(vg_io_t *io) {
  if (io->write_status == 0) {
    io->cut = 1;
    io->write_status = UV_EPIPE;
  }
  vg__stream_wake_writers(io);
}

/* }================================================================= */


/*
** {== Ending the write side
*/

static void ending_dispose(vg_event_t *event) { VG_UNUSED(event); }

static int ending_start(vg_event_t *event) {
  VG_UNUSED(event);
  return 0; /* under way already; this counts it */
}

static const vg_event_methods_t ending_methods = {
    .name = "shutdown",
    .start = ending_start,
    .dispose = ending_dispose,
};

static void end_done(vg_io_t *io, int status) {
  vg_ending_t *ending = io->side.ending;
  ending->done = 1;
  ending->status = status;
  vg_event_notify(&ending->event, 0, 0);
}

static void ended(uv_shutdown_t *request, int status) {
  vg_io_t *io = request->handle->data;
  if (io->state == VG_IO_OPEN) end_done(io, status);
}

/* Whatever comes after the last byte. */
static void drained(vg_io_t *io) {
  vg_ending_t *ending = io->side.ending;

  count(io);
  if (io->state == VG_IO_FLUSHING) {
    vg__io_finish(io, 0);
  } else if (io->state == VG_IO_OPEN && ending != NULL && !ending->submitted &&
             vg_list_empty(&io->writers)) {
    int err;
    ending->submitted = 1;
    err = uv_shutdown(&ending->request, &io->uv.stream, ended);
    if (err < 0) end_done(io, err);
  }
}

static void sent(uv_write_t *request, int status) {
  vg_chunk_t *chunk = VG_CONTAINER(request, vg_chunk_t, request);
  vg_io_t *io = chunk->io;
  int err = status;

  io->sending = NULL;
  free(chunk);
  if (io->state == VG_IO_CLOSING) { /* it was cut off */
    count(io);
    return;
  }
  if (err == 0 && io->pending != NULL) err = submit(io);
  if (err == 0 && io->sending == NULL) feed(io, 1);
  if (err < 0) fail(io, err);
  if (io->sending == NULL) drained(io);
}

int vg_io_shutdown(vg_io_t *io) {
  vg_ending_t *ending;

  if (vg__io_is_closed(io)) return VG_ECLOSED;
  ending = io->side.ending;
  if (ending == NULL) {
    if (io->write_status != 0) return io->write_status;
    ending = calloc(1, sizeof *ending);
    if (ending == NULL) return UV_ENOMEM;
    vg_event_init(&ending->event, io->base.event.scheduler, &ending_methods,
                  io->base.event.flags & VG_EVENT_HIDDEN);
    io->side.ending = ending;
    io->write_status = UV_EPIPE;
    if (io->sending == NULL) drained(io);
  }
  if (!ending->done) return 0;
  return ending->status < 0 ? ending->status : 1;
}

int vg_io_wait_shutdown(vg_io_t *io, vg_coroutine_t *co) {
  return vg_resume_when(co, &io->side.ending->event, 0, NULL, NULL);
}

/* }================================================================= */


/*
** {== Writing
*/

int vg_io_write(vg_io_t *io, const uv_buf_t *bufs, unsigned n, size_t size,
                size_t *written) {
  int result;

  *written = 0;
  if (vg__io_is_closed(io)) return VG_ECLOSED;
  if (io->write_status != 0) return io->write_status;
  if (size == 0) return 1;
  if (io->sending != NULL) return 0;
  result = uv_try_write(&io->uv.stream, bufs, n);
  if (result == UV_EAGAIN) return 0;
  if (result < 0) {
    fail(io, result);
    return result;
  }
  *written = (size_t)result;
  return (size_t)result == size;
}

int vg_io_queue(vg_io_t *io, const char *data, size_t left, size_t total) {
  size_t queued = vg_io_queued(io);
  int err;

  if (!vg_list_empty(&io->writers) || left > io->limits->high_water ||
      queued > io->limits->high_water - left)
    return 0;
  err = enqueue(io, data, left);
  if (err == 0) return 1;
  if (err != UV_ENOMEM)
    fail(io, err);
  else if (left < total)
    vg__io_cut(io);
  return err;
}

int vg_io_wait_write(vg_io_t *io, vg_coroutine_t *co, vg_writer_t *writer) {
  writer->wait = vg__waker_wait(co, &io->output);
  if (writer->wait == NULL) {
    if (writer->left < writer->total) vg__io_cut(io);
    return UV_ENOMEM;
  }
  vg_list_append(&io->writers, &writer->link);
  return 0;
}

/* }================================================================= */


void vg__ignore_sigpipe(void) {
#ifdef SIGPIPE
  struct sigaction action;
  if (sigaction(SIGPIPE, NULL, &action) != 0) return;
  if ((action.sa_flags & SA_SIGINFO) || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, NULL);
#endif
}
