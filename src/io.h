/*
** io.h: what io.c, io_buffer.c, io_stream.c, socket.c, listen.c and dns.c
** share: the I/O handle, the server event, name lookups.
**
** One coroutine may read and others write on one handle at a time.  Each side
** has an event of its own inside the handle, so that a handle counts as
** active while somebody waits on it and not while its descriptor is merely
** watched.  The handle itself, as an event, fires once: when it is closed.
*/

#ifndef VG_IO_H
#define VG_IO_H

#include "internal.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef struct vg_io vg_io_t;

enum { VG_IO_TCP, VG_IO_PIPE };

/* Defaults of what setoption can change. */
#define VG_IO_LINGER_S 60
#define VG_IO_HIGH_WATER 65536
#define VG_IO_MAX_LINE ((size_t)1 << 20)
#define VG_IO_MAX_ALL ((size_t)64 << 20)

/* A numeric address. */
typedef union vg_address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
} vg_address_t;

#define VG_ADDRESS_SIZE 80 /* room for the text of one, with its scope */


/*
** {== Bytes read and not yet taken, and the search in them: io_buffer.c
*/

typedef enum vg_read_mode {
  VG_READ_SOME,  /* whatever is there */
  VG_READ_EXACT, /* so many bytes; fewer only at the end */
  VG_READ_LINE,
  VG_READ_UNTIL, /* up to a separator */
  VG_READ_ALL    /* up to the end */
} vg_read_mode_t;

/* What a read waits for.  The separator is the caller's memory. */
typedef struct vg_want {
  uint8_t mode;
  uint8_t keep_ends; /* VG_READ_LINE: with what ends the line */
  uint32_t separator_length;
  const char *separator;
  size_t limit; /* EXACT: how many; else: at most so many */
} vg_want_t;

/* The answer: so many bytes are the result, so many more go with them. */
typedef struct vg_found {
  size_t take, skip;
} vg_found_t;

/* The bytes are data[start .. end).  Empty, it starts at 0. */
typedef struct vg_buffer {
  char *data;
  size_t start, end, capacity;
} vg_buffer_t;

static inline size_t vg__buffer_length(const vg_buffer_t *b) {
  return b->end - b->start;
}

void vg__buffer_clear(vg_buffer_t *b);
/* Makes room for `size` bytes more behind the end.  UV_ENOMEM. */
int vg__buffer_reserve(vg_buffer_t *b, size_t size);
int vg__buffer_append(vg_buffer_t *b, const char *data, size_t size);
void vg__buffer_consume(vg_buffer_t *b, size_t size);
/* 1: found; 0: more is needed; VG_EMSGSIZE; the end's own status (UV_EOF, an
** error) when nothing more will come and that does not do.  `end`: 0 while
** more may come.  `scanned`: so much was searched before, in vain. */
int vg__buffer_find(const vg_buffer_t *b, const vg_want_t *want, int end,
                    size_t *scanned, vg_found_t *found);

/* }================================================================= */


/*
** {== The handle: io.c, and what it does with a uv_stream_t: io_stream.c
*/

/* Bytes on their way out: a request that libuv has, or one being filled. */
typedef struct vg_chunk {
  uv_write_t request;
  vg_io_t *io;
  size_t length, capacity;
  char data[];
} vg_chunk_t;

/* A coroutine whose write did not fit below the high-water mark.  It belongs
** to the waiter, as do the bytes.
**   - `wait` is NULL when it is not (or no longer) in io->writers. */
typedef struct vg_writer {
  vg_link_t link;
  vg_wait_t *wait;
  const char *data; /* what is left */
  size_t left, total;
} vg_writer_t;

/* The write side is being ended; made by the first shutdown. */
typedef struct vg_ending {
  uv_shutdown_t request;
  vg_event_t event; /* for those who wait for it */
  int status;       /* once done */
  unsigned submitted : 1, done : 1;
} vg_ending_t;

/* A connect to a unix socket whose backlog was full: it is tried again. */
typedef struct vg_retry {
  vg_alarm_t alarm;
  vg_io_t *io;
  int fd;
  uint32_t length; /* of the address */
  uint64_t pause_ns;
  char address[128]; /* a struct sockaddr_un */
} vg_retry_t;

/* A closed handle is sending what is left.  Once in a while it is looked at
** whether the peer takes any of it. */
typedef struct vg_linger {
  vg_alarm_t alarm;
  vg_io_t *io;
  size_t left; /* then */
} vg_linger_t;

/* What few handles change; the others share the defaults. */
typedef struct vg_io_limits {
  double linger_s; /* closed, with bytes that the peer does not take */
  size_t high_water, max_line, max_all;
} vg_io_limits_t;

typedef enum vg_io_state {
  VG_IO_OPENING, /* no connection yet; somebody waits on `input` for it */
  VG_IO_OPEN,
  VG_IO_FLUSHING, /* closed to its users; what was acknowledged is sent */
  VG_IO_CLOSING,  /* uv_close has been called */
  VG_IO_CLOSED    /* libuv does not know it any more */
} vg_io_state_t;

/* The I/O handle.  As an event it fires when it is closed to its users.
**   - CLOSED is set from FLUSHING on.
**   - `reader` is who waits on `input` (to read, or to be connected): one at
**     most.  `want` is what it reads.  `reading` is set from its wait until
**     it has run again, so that nobody takes what it was woken for.
**   - read_status: 0, or what every read gives once the buffer is empty
**     (UV_EOF or an error; it stays).
**   - write_status: 0, or what every write gives.
**   - `pending` is filled only while `sending` is with libuv.  writers wait,
**     oldest first, and only while `sending` is there.
**   - `counted`: `sending` counts as an active event. */
struct vg_io {
  vg_uv_event_t base;
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
  } uv;
  vg_event_t input;
  vg_event_t output;
  vg_wait_t *reader;
  vg_link_t writers;
  vg_buffer_t buffer;
  vg_want_t want;
  size_t scanned; /* for `want`: see vg__buffer_find */
  vg_chunk_t *sending, *pending;
  union {
    vg_retry_t *retry;   /* OPENING */
    vg_ending_t *ending; /* later; NULL: no shutdown so far */
  } side;
  vg_linger_t *linger; /* FLUSHING; NULL: for as long as it takes */
  const vg_io_limits_t *limits;
  union {
    vg_address_t peer; /* of TCP; sa_family 0: not known */
    char *path;        /* of a pipe; NULL: it has no name */
  } name;
  int read_status, write_status;
  uint8_t kind;
  uint8_t state;
  unsigned armed : 1;   /* uv_read_start */
  unsigned stalled : 1; /* input came while the buffer was full */
  unsigned reading : 1;
  unsigned counted : 1;
  unsigned cut : 1; /* write_status is for a write that was given up */
};

static inline int vg__io_is_closed(const vg_io_t *io) {
  return (io->base.event.flags & VG_EVENT_CLOSED) != 0;
}

/* Makes one that libuv knows and that is connected to nothing. */
int vg_io_new(vg_scheduler_t *s, int kind, vg_io_t **result);
/* Takes over a connected descriptor, unless it fails.  `peer`, `path` (taken
** over, from malloc) may be NULL. */
int vg_io_open(vg_io_t *io, int fd, const vg_address_t *peer, char *path);

/* Begin to connect; `local` may be NULL.  Then wait for it. */
int vg_io_connect(vg_io_t *io, const vg_address_t *address,
                  const vg_address_t *local);
int vg_io_connect_path(vg_io_t *io, const char *path, size_t length);
int vg_io_wait_connected(vg_io_t *io, vg_coroutine_t *co);

/* What the waiter finds, or fails with, it sees when it looks again. */
static inline void vg__io_wake_reader(vg_io_t *io) {
  if (io->reader != NULL)
    vg_waker_wake(io->reader->coroutine, io->reader, 0, 0);
}

/* Whether a read can be answered, as vg__buffer_find; also VG_ECLOSED, and
** UV_EBUSY while another one waits.  The waiter looks with io->want. */
int vg__io_look(vg_io_t *io, const vg_want_t *want, vg_found_t *found);
static inline int vg_io_look(vg_io_t *io, const vg_want_t *want,
                             vg_found_t *found) {
  size_t length = vg__buffer_length(&io->buffer);
  if ((io->reading && want != &io->want) || want->limit <= length)
    return vg__io_look(io, want, found);
  if (length == 0) {
    if (io->state != VG_IO_OPEN || io->read_status != 0)
      return vg__io_look(io, want, found);
    io->scanned = 0;
    return 0; /* the usual case: it has to wait */
  }
  if (want->mode != VG_READ_SOME) return vg__io_look(io, want, found);
  found->take = length;
  found->skip = 0;
  return 1;
}
/* Waits for that, just after a look that gave 0. */
int vg_io_wait_read(vg_io_t *io, vg_coroutine_t *co, const vg_want_t *want);
/* The reader runs again. */
static inline void vg_io_read_done(vg_io_t *io) { io->reading = 0; }
static inline const char *vg_io_bytes(const vg_io_t *io) {
  return io->buffer.data + io->buffer.start;
}
void vg_io_consume(vg_io_t *io, size_t size);

/* Writes what can be written at once: all (1), or *written of it (0), or an
** error.  Nothing if others are before it. */
int vg_io_write(vg_io_t *io, const uv_buf_t *bufs, unsigned count, size_t size,
                size_t *written);
/* Queues the rest if it fits below the high-water mark: 1; 0: it does not.
** `total`: of the whole write. */
int vg_io_queue(vg_io_t *io, const char *data, size_t left, size_t total);
/* Waits until the rest has been queued.  `writer` has its data set. */
int vg_io_wait_write(vg_io_t *io, vg_coroutine_t *co, vg_writer_t *writer);
/* How many bytes are queued. */
size_t vg_io_queued(const vg_io_t *io);
/* A write was given up with a part of it sent: the write side is broken. */
void vg__io_cut(vg_io_t *io);

/* Ends the write side when what was written before has gone.  1: that is
** done; 0: wait for it; an error. */
int vg_io_shutdown(vg_io_t *io);
int vg_io_wait_shutdown(vg_io_t *io, vg_coroutine_t *co);

/* Both may be called at any time, again and again. */
void vg_io_close(vg_io_t *io);
void vg_io_abort(vg_io_t *io);
void vg_io_hide(vg_io_t *io);

/* A changeable copy of the limits, or NULL. */
vg_io_limits_t *vg_io_own_limits(vg_io_t *io);
/* "127.0.0.1:80", a path, or "?", for messages. */
void vg_io_peer_text(const vg_io_t *io, char *buffer, size_t size);

/* io.c, for io_stream.c: uv_close, when nothing is left to send. */
void vg__io_finish(vg_io_t *io, int reset);

/* io_stream.c, for io.c: */
int vg__stream_arm(vg_io_t *io);
void vg__stream_disarm(vg_io_t *io);
void vg__stream_wake_writers(vg_io_t *io);
int vg__stream_start_writer(vg_io_t *io);
void vg__stream_drop_writer(vg_io_t *io, const vg_callback_t *cb);
/* SIGPIPE would kill the process: ignored, unless somebody handles it. */
void vg__ignore_sigpipe(void);

/* }================================================================= */


/*
** {== The server: listen.c
*/

#define VG_LISTEN_QUEUE 128

/* A connection that the kernel gave us and no coroutine has taken. */
typedef struct vg_accepted {
  int fd;
  vg_address_t peer;
} vg_accepted_t;

/* A server socket.  As an event it fires when it is closed.
**   - `promised` acceptors were woken for a connection and have not run yet:
**     promised <= count, or the server is closed.
**   - acceptors wait (oldest first) only while promised == count.
**   - `polling`: the descriptor is watched.  It is not while nobody has asked
**     so far, while the queue is full, and while descriptors are scarce.
**   - scarce: 0, or the error for want of descriptors; then `task` is queued,
**     or `alarm` is armed and it is tried again later. */
typedef struct vg_listen {
  vg_uv_event_t base;
  uv_poll_t poll;
  vg_event_t incoming;
  vg_link_t acceptors, granted;
  vg_alarm_t alarm;
  vg_microtask_t task;
  /* What the host can do about scarce descriptors (collect), and say. */
  void (*relieve)(struct vg_listen *listen);
  void (*complain)(struct vg_listen *listen, int err);
  uint64_t pause_ns, relieved_ns, complained_ns;
  int fd;
  int scarce;
  int status;      /* an error that the next acceptor is given */
  int keepalive_s; /* for its connections; 0: off */
  uint8_t kind;
  unsigned polling : 1;
  unsigned nodelay : 1;
  char *path; /* a unix socket's, to be removed; NULL: none */
  uint32_t path_length;
  vg_address_t address; /* of TCP */
  uint32_t head, count, promised;
  vg_accepted_t queue[VG_LISTEN_QUEUE];
} vg_listen_t;

typedef struct vg_listen_options {
  int backlog; /* 0: as many as the system allows */
  unsigned reuseaddr : 1, reuseport : 1, ipv6only : 1;
} vg_listen_options_t;

int vg_listen_new(vg_scheduler_t *s, const vg_address_t *address,
                  const vg_listen_options_t *options, vg_listen_t **result);
int vg_listen_new_path(vg_scheduler_t *s, const char *path, size_t length,
                       const vg_listen_options_t *options,
                       vg_listen_t **result);
/* A connection, if one can be had at once: 1; else 0, or an error. */
int vg_listen_take(vg_listen_t *listen, vg_accepted_t *result);
/* Waits for one; when woken with 0, call vg_listen_granted. */
int vg_listen_wait(vg_listen_t *listen, vg_coroutine_t *co);
int vg_listen_granted(vg_listen_t *listen, vg_accepted_t *result);
void vg_listen_close(vg_listen_t *listen);
void vg_listen_text(const vg_listen_t *listen, char *buffer, size_t size);

/* }================================================================= */


/*
** {== Sockets, where libuv does not say enough or does too much: socket.c
*/

/* Results: a descriptor, or a negative code. */
int vg__socket_listen(const vg_address_t *address,
                      const vg_listen_options_t *options);
int vg__socket_listen_path(const char *path, size_t length, int backlog);
int vg__socket_accept(int fd, vg_address_t *peer);
/* The local address of a TCP socket. */
int vg__socket_address(int fd, vg_address_t *address);
void vg__socket_close(int fd);
/* A unix address; UV_ENAMETOOLONG, UV_EINVAL.  Returns its length. */
int vg__socket_path(const char *path, size_t length, char *address,
                    size_t size);
/* A new unix socket. */
int vg__socket_unix(void);
/* 0, UV_EAGAIN, or an error. */
int vg__socket_connect(int fd, const char *address, uint32_t length);

/* UV_EINVAL if host is not numeric. */
int vg_address_parse(vg_address_t *address, const char *host, int port);
int vg_address_port(const vg_address_t *address);
/* The host alone; "?" if it is no address. */
void vg_address_host(const vg_address_t *address, char *buffer, size_t size);
/* "127.0.0.1:80", "[::1]:80" */
void vg_address_text(const vg_address_t *address, char *buffer, size_t size);
/* Options that libuv can set and not tell, or neither. */
enum { VG_SOCKET_NODELAY, VG_SOCKET_KEEPALIVE, VG_SOCKET_USER_TIMEOUT };
int vg__socket_get(int fd, int option, int *value);
int vg__socket_set(int fd, int option, int value);
/* The path of a unix socket that sockname or peername gave, with its length;
** an abstract one begins with a zero byte. */
int vg__socket_name(int fd, int peer, char *buffer, size_t *size);

/* }================================================================= */


/*
** {== Name lookups: dns.c
*/

/* One lookup, an event with a result.  It begins when somebody waits. */
typedef struct vg_resolve {
  vg_event_t event;
  uv_getaddrinfo_t request;
  vg_reactor_t *reactor;
  char *host;
  struct addrinfo *addresses; /* once done, and status is 0 */
  int status;
  unsigned in_flight : 1, done : 1;
} vg_resolve_t;

int vg_resolve_new(vg_scheduler_t *s, const char *host, vg_resolve_t **result);

/* }================================================================= */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
