/*
** events.h: the events that libuv serves in the background: polls, signals,
** triggers.  Private.
*/

#ifndef VG_EVENTS_H
#define VG_EVENTS_H

#include <stdatomic.h>

#include "internal.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif


/* Moves all of a list to a head of its own, for a walk during which elements
** come and go: the walker puts each back before its turn. */
static inline void vg_list_move(vg_link_t *to, vg_link_t *from) {
  vg_list_init(to);
  if (vg_list_empty(from)) return;
  *to = *from;
  to->next->prev = to->prev->next = to;
  vg_list_init(from);
}


/*
** {== Counted arrivals: what signals and triggers have in common.
**
** Arrivals come whether anybody waits or not, and none may be lost: not those
** before the first wait, not the one that woke a coroutine which is cancelled
** before it runs.  So telling is not taking:
**   - arrived >= told, taken, counted from the creation;
**   - a notification tells how many came since the last one;
**   - a coroutine takes what is there when it runs;
**   - a subscriber that stays subscribed has seen what it was told.
*/
typedef struct vg_tally {
  size_t arrived;
  size_t told;
  size_t taken;
} vg_tally_t;

static inline size_t vg__tally_pending(const vg_tally_t *tally) {
  return tally->arrived - tally->taken;
}

static inline size_t vg__tally_take(vg_tally_t *tally) {
  size_t count = tally->arrived - tally->taken;
  tally->told = tally->taken = tally->arrived;
  return count;
}

/* Notifies who subscribes of what is new. */
static inline void vg__tally_tell(vg_tally_t *tally, vg_event_t *event) {
  size_t told = tally->arrived, count = told - tally->told;

  if (count == 0 || event->callbacks.length == 0) return;
  vg_event_add_ref(event);
  tally->told = told;
  vg_event_notify(event, 0, (intptr_t)count);
  if (event->callbacks.length > 0) tally->taken = told;
  vg_event_release(event);
}

/* The `replay` of both: tells, and leaves the taking to who runs. */
static inline int vg__tally_replay(vg_tally_t *tally, vg_event_t *event,
                                   vg_callback_t *callback) {
  size_t count = vg__tally_pending(tally);
  if (count == 0 || (event->flags & VG_EVENT_CLOSED)) return 0;
  if (callback != NULL) {
    tally->told = tally->arrived;
    callback->notify(callback, event, 0, (intptr_t)count);
  }
  return 1;
}

/* Closes the event; who waits is told why.  From inside its own notification
** it only closes: all who subscribe are being told something already. */
static inline void vg__event_end(vg_event_t *event, int status) {
  if (vg_event_notify_and_close(event, status, 0) != VG_ENESTED) return;
  while (event->loop_ref_count > 0) vg_event_stop(event);
  event->flags |= VG_EVENT_CLOSED;
}

/* Waits for an event whose userdata may be collected before the waiter lets
** go of it (when a state closes, finalizers come first). */
static inline int vg__resume_when_owned(vg_coroutine_t *co, vg_event_t *event) {
  vg_event_add_ref(event);
  return vg_resume_when(co, event, 1, NULL, NULL);
}

/* }================================================================= */


/*
** {== Polls: poll.c
*/

/* A descriptor that somebody asked about: one for each number and scheduler.
**   - it is in polls->slots[fd] as long as the number means what it meant when
**     the poll was made: the file (dev, ino).  Otherwise it is stale, and
**     stays so;
**   - `native` is libuv's side, open while armed and until the next turn;
**   - wanting[i] proxies that are started have bit i in their mask; libuv is
**     asked for the union;
**   - every proxy holds one reference. */
typedef struct vg_poll {
  vg_event_t event; /* only its reference count: proxies are waited for */
  struct vg_polls *polls;
  struct vg_poll_native *native;
  vg_link_t proxies;   /* the started ones */
  vg_link_t link;      /* in polls->started while there are any */
  vg_link_t unsettled; /* in polls->unsettled: libuv has not been told yet */
  dev_t device;
  ino_t inode;
  uint32_t wanting[4];
  int fd;
  unsigned stale : 1;
} vg_poll_t;

/* What one waits for: a mask on a shared poll.  Its notifications carry the
** part of it that came true, and UV_DISCONNECT. */
typedef struct vg_poll_proxy {
  vg_event_t event;
  vg_poll_t *poll;
  vg_link_t link; /* in poll->proxies while started */
  int mask;       /* UV_READABLE | ... */
  int error;      /* why it is closed */
} vg_poll_proxy_t;

/* The poll of a descriptor; the caller owns a reference.  VG_EVENT_CLOSE_FD
** gives it the descriptor, to be closed after the native handle.  UV_EBADF;
** UV_EPERM: cannot be polled (a regular file). */
int vg_poll_open(vg_scheduler_t *s, int fd, uint32_t flags, vg_poll_t **poll);
int vg_poll_proxy_new(vg_poll_t *poll, int mask, vg_poll_proxy_t **proxy);
/* Who waits fails with VG_ECLOSED.  May be called twice. */
void vg_poll_proxy_close(vg_poll_proxy_t *proxy);
/* Opens the native handle ahead of the start, for what that may fail with. */
int vg_poll_proxy_prepare(vg_poll_proxy_t *proxy);
/* A mask as letters of "rwdp"; returns `text`. */
const char *vg_poll_letters(int mask, char text[5]);
/* A descriptor number that has just been closed or got (anywhere in vigil):
** who waits for what it meant before fails with UV_EBADF. */
void vg__polls_check(vg_scheduler_t *s, int fd);
/* Tells libuv what has changed; closes natives that nobody uses.  Happens by
** itself with each turn of the loop. */
void vg__polls_settle(vg_reactor_t *r);

/* }================================================================= */


/*
** {== Signals: signal.c
*/

/* One subscription of a signal number.
**   - from creation to close it is in signal->handle->watchers, armed, and
**     counts what arrives;
**   - started (somebody waits) it keeps the loop alive. */
typedef struct vg_signal {
  vg_event_t event;
  struct vg_signal_handle *handle; /* shared by all of this number */
  vg_link_t link;
  vg_tally_t tally;
  int signum;
} vg_signal_t;

int vg_signal_new(vg_scheduler_t *s, int signum, vg_signal_t **signal);
void vg_signal_close(vg_signal_t *signal);
/* "SIGINT"; returns `text`. */
const char *vg_signal_name(int signum, char text[24]);
/* "INT", "SIGINT", "sigint"; 0 if there is none of that name. */
int vg_signal_number(const char *name);

/* }================================================================= */


/*
** {== Triggers: trigger.c
*/

/* Fired from any thread.
**   - `gate`: the number of threads inside vg_trigger_fire, and GATE_CLOSED;
**     with that bit set and the count 0 no thread touches `async` any more;
**   - `fired` is the threads' side of tally.arrived. */
struct vg_trigger {
  vg_uv_event_t base;
  uv_async_t async;
  vg_tally_t tally;
  atomic_size_t fired;
  atomic_uint gate;
};

void vg_trigger_close(vg_trigger_t *trigger);
/* Takes what has been fired and not been taken. */
size_t vg_trigger_take(vg_trigger_t *trigger);

/* }================================================================= */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
