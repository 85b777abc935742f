/*
** internal.h: the structures of the core, with what must hold for each, and
** the functions that src/ files share.  Private: nothing here is stable.
**
** Who keeps what alive, in one place:
**   - an event that libuv knows: by its reference count (boxes, that is
**     userdata, wakers with ownership and requests each count one), and from
**     uv_*_init to the close callback by libuv, which counts none.
**   - an event that is a userdata (LUA_OBJECT): by the collector.  A waiter
**     has it on its Lua stack, and a waiter's thread is anchored.
**   - a coroutine that has not ended: by the anchor of its thread.
**   - a request: by libuv until its completion, always.
*/

#ifndef VG_INTERNAL_H
#define VG_INTERNAL_H

#include <uv.h>

/* Calls between the files need no detour through the dynamic linker. */
#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

#include "queue.h"
#include "vigil.h"

#define VG_UNUSED(x) ((void)(x))

/* Fairness, both ways. */
#define VG_RESUMES_PER_POLL 64 /* resumes before the reactor is looked at */
#define VG_READY_BURST 128     /* waits that did not suspend, in a row */


/*
** {== Timers: timer.c
*/

/* A moment somebody waits for.  In the heap while index > 0. */
typedef struct vg_timer_node {
  uint64_t due_ns;
  uint32_t index; /* place in the heap, from 1; 0: not armed */
  uint8_t kind;   /* VG_NODE_*: whose field this is */
  uint8_t hidden; /* does not count as active */
} vg_timer_node_t;

enum { VG_NODE_WAKER, VG_NODE_TIMER, VG_NODE_BLOCK, VG_NODE_CALL };

/* VG_NODE_CALL: an internal alarm, always hidden. */
typedef struct vg_alarm {
  vg_timer_node_t node;
  void (*fire)(struct vg_alarm *alarm);
} vg_alarm_t;

int vg__timer_arm(vg_scheduler_t *s, vg_timer_node_t *node, uint64_t due_ns);
void vg__timer_disarm(vg_scheduler_t *s, vg_timer_node_t *node);
/* Fires every node that is due; called by the reactor. */
void vg__timers_expire(vg_scheduler_t *s);
/* The first due time, or 0. */
uint64_t vg__timers_next(const vg_scheduler_t *s);

/* now + seconds, saturating; `seconds` is not negative and not NaN. */
uint64_t vg__deadline(double seconds);

typedef struct vg_timer {
  vg_event_t event;
  vg_timer_node_t node;
  uint64_t period_ns; /* 0: one-shot */
  uint64_t due_ns;    /* of the tick to come; fixed at creation */
  int status;         /* of a one-shot's firing: 0, or what a timeout means */
} vg_timer_t;

void vg_timer_init(vg_timer_t *timer, vg_scheduler_t *s, uint64_t due_ns,
                   uint64_t period_ns, uint32_t flags);
void vg_timer_close(vg_timer_t *timer);
/* How many ticks of a periodic timer have passed unseen; takes them. */
uint64_t vg_timer_ticks(vg_timer_t *timer, uint64_t now_ns);
extern const vg_event_methods_t vg_timer_methods;
void vg__timer_expired(vg_timer_t *timer);

/* }================================================================= */


/*
** {== Wakers: waker.c
*/

typedef enum vg_waker_status {
  VG_WAKER_NO_STATUS, /* waits for nothing */
  VG_WAKER_WAITING,   /* subscribed; parked once its coroutine is SUSPENDED */
  VG_WAKER_QUEUED,    /* in the ready queue, with the outcome */
  VG_WAKER_IGNORED,   /* in the ready queue, to be ended without running */
  VG_WAKER_RESULT     /* the outcome is there, to be collected */
} vg_waker_status_t;

/* One subscription of a waker: a coroutine callback.  The first of a wait
** lies in the waker, the others come from the scheduler's free list.  With
** an event that keeps its own FIFO (channel), `link` stands where the vector's
** fields are. */
struct vg_coroutine_callback {
  union {
    vg_callback_t base; /* in the event's vector */
    struct {
      vg_notify_t unused;
      vg_link_t link; /* in the event's own FIFO, or NULL */
    };
  };
  vg_coroutine_t *coroutine;
  vg_event_t *event;
  vg_wait_t *next;  /* the waker's next subscription, or in the free list */
  int32_t index;    /* a place on the waiter's stack; the binding's */
  uint16_t ordinal; /* which subscription of this wait, from 0 */
  uint8_t kind;     /* the event's own */
  uint8_t flags;    /* VG_WAIT_* */
};

enum {
  VG_WAIT_USED = 1,    /* subscribed */
  VG_WAIT_STARTED = 2, /* and its event started */
  VG_WAIT_OWNED = 4    /* holds a reference to its event */
};

/* What a coroutine waits for.
**   - status WAITING: `first` and what follows it are subscribed.
**   - leaving WAITING drops every subscription at once, so an event never
**     finds a waker that has its outcome already.
**   - QUEUED: its coroutine is in the ring exactly once.
**   - GRANTED: `first` is in a list of its event's, which handed over
**     something that only one can have and wants it back (revoke) if this
**     coroutine is cancelled before it runs. */
typedef struct vg_waker {
  uint8_t status;
  uint8_t flags;    /* VG_WAKER_F_* */
  uint16_t ordinal; /* which subscription ended the wait */
  int32_t error;    /* 0, or why there is no result */
  intptr_t value;   /* what the event delivered */
  uint16_t count;   /* subscriptions so far */
  vg_timer_node_t timer;
  vg_wait_t first;
  void *thread; /* where the wait was made; the binding's */
} vg_waker_t;

enum {
  VG_WAKER_F_SLEEP = 1,  /* the timer is the result, not a limit */
  VG_WAKER_F_GRANTED = 2 /* see above */
};

#define VG_ORDINAL_NONE UINT16_MAX

void vg_waker_define(vg_waker_t *waker);

/* Begins a wait of the running coroutine.  Allocates nothing. */
void vg_waker_new(vg_coroutine_t *co);
/* The same with a limit (0: none) and a token (NULL: none). */
int vg_waker_new_with_timeout(vg_coroutine_t *co, uint64_t due_ns,
                              vg_event_t *cancellation);

/* Subscribes: `notify` is called when the event fires (NULL: the first event
** to fire ends the wait).  With take_ownership the waker releases the event.
** `wait` receives the subscription (may be NULL).  UV_ENOMEM, VG_ECLOSED. */
int vg_resume_when(vg_coroutine_t *co, vg_event_t *event, int take_ownership,
                   vg_notify_t notify, vg_wait_t **wait);
/* A subscription that its event links into a FIFO itself. */
vg_wait_t *vg__waker_wait(vg_coroutine_t *co, vg_event_t *event);

/* The standard callbacks. */
void vg_wake_resolve(vg_callback_t *cb, vg_event_t *ev, int status,
                     intptr_t value);
void vg_wake_cancel(vg_callback_t *cb, vg_event_t *ev, int status,
                    intptr_t value); /* a token: VG_ETOKEN */
void vg_wake_timeout(vg_coroutine_t *co);

/* Sets a time at which the wait ends: as its result, or with UV_ETIMEDOUT. */
int vg__waker_timer(vg_coroutine_t *co, uint64_t due_ns, int is_result);

/* Starts what was subscribed.  1: parked, the caller must give up control;
** 0: the outcome is there already; negative: an event could not be started,
** nothing is subscribed any more. */
int vg_waker_park(vg_coroutine_t *co);

/* Ends the wait with an outcome.  0, or VG_ESTATE if there is no wait. */
int vg_waker_wake(vg_coroutine_t *co, vg_wait_t *wait, int error,
                  intptr_t value);
/* The same, for a wake that hands over: moves the subscription to `first`,
** appends it to `granted`. */
int vg__waker_grant(vg_coroutine_t *co, vg_wait_t *wait, intptr_t value,
                    vg_link_t *granted);

/* QUEUED: an error takes the place of the outcome; what only this coroutine
** could have had goes to the next. */
void vg__waker_replace(vg_coroutine_t *co, int error);

/* Drops what is subscribed; the waker can be used again. */
void vg_waker_clean(vg_coroutine_t *co);

/* Whether all it waits for is hidden. */
int vg__waker_is_idle(const vg_coroutine_t *co);

/* }================================================================= */


/*
** {== Coroutines: coroutine.c
*/

enum {
  VG_CO_STARTED = 1 << 0,
  VG_CO_CANCEL_REQUESTED = 1 << 1, /* its own cancellation; stays */
  VG_CO_CANCEL_ACTIVE = 1 << 2,    /* the next suspension point raises */
  VG_CO_DEADLOCKED = 1 << 3,       /* has had its first verdict */
  VG_CO_SWITCH_HANDLERS = 1 << 4,
  VG_CO_HIGH_PRIORITY = 1 << 5, /* always queued at the head */
  VG_CO_MAIN = 1 << 6,          /* the main chunk: no body, no scope */
  VG_CO_EXTRAS = 1 << 7,        /* the binding's: uservalue 2 is set */
  VG_CO_MULTI = 1 << 8,         /* the binding's: the result is a pack */
  VG_CO_UNHANDLED = 1 << 9,     /* its error was given to its scope */
  VG_CO_GOT_HOLD = 1 << 10,     /* the binding's: do not recycle its thread */
  VG_CO_CLEANUP = 1 << 11       /* runs finally handlers: its scope does not
                                ** cancel it */
};

/* One with_timeout or protect around code that runs in a coroutine.  It lives
** in the frame of that call and is left before the call returns. */
typedef struct vg_block {
  struct vg_block *outer;
  vg_coroutine_t *coroutine;
  vg_timer_node_t timer;
  uint8_t kind; /* VG_BLOCK_* */
  uint8_t fired;
} vg_block_t;

enum { VG_BLOCK_TIMEOUT, VG_BLOCK_PROTECT };

/* A coroutine.
**   - in `scope`'s list from spawn to finish, and counted in scheduler->live;
**   - QUEUED: in the ring exactly once; RUNNING: scheduler->current or in a
**     call below it; SUSPENDED: waker WAITING;
**   - CANCEL_ACTIVE is derived: vg__coroutine_judge sets it from the request
**     and the blocks. */
struct vg_coroutine {
  vg_event_t event; /* methods: a vg_coroutine_methods_t */
  vg_waker_t waker;
  void *thread; /* the binding's: its Lua thread */
  vg_scope_t *scope;
  vg_link_t link;     /* in the scope's list */
  vg_block_t *blocks; /* innermost first */
  uint64_t id;
  const char *spawn_source; /* interned by the binding; may be NULL */
  int32_t spawn_line;
  uint32_t anchor; /* the binding's */
  uint16_t flags;
  uint8_t state;
  uint8_t burst; /* waits in a row that did not suspend */
};

static inline const vg_coroutine_methods_t *vg__comethods(
    const vg_coroutine_t *co) {
  return (const vg_coroutine_methods_t *)(const void *)co->event.methods;
}

/* `event_flags` as for vg_event_init. */
void vg_coroutine_init(vg_coroutine_t *co, vg_scheduler_t *s,
                       const vg_coroutine_methods_t *methods,
                       uint32_t event_flags);
void vg__block_enter(vg_coroutine_t *co, vg_block_t *block, int kind);
int vg__block_limit(vg_block_t *block, uint64_t due_ns);
void vg__block_leave(vg_block_t *block); /* may be called twice */
void vg__block_expired(vg_block_t *block);
/* Fires the blocks around whose time is over, without a turn of the loop. */
void vg__blocks_expire(vg_coroutine_t *co);
/* Which block's time has run out and counts now: the outermost one inside
** every protection; NULL: none. */
vg_block_t *vg__block_active(const vg_coroutine_t *co);
/* Whether its own cancellation counts now. */
int vg__cancel_active(const vg_coroutine_t *co);
void vg__coroutine_judge(vg_coroutine_t *co);
void vg__coroutine_switched(vg_coroutine_t *co, vg_switch_t what);
void vg__coroutine_forget_switches(vg_scheduler_t *s);
static inline int vg__coroutine_ended(const vg_coroutine_t *co) {
  return co->state >= VG_COROUTINE_COMPLETED;
}
/* vg_event_methods_t entries that every kind of coroutine shares. */
int vg__coroutine_replay(vg_event_t *event, vg_callback_t *callback);
int vg__coroutine_info(const vg_event_t *event, char *buffer, size_t size);

/* }================================================================= */


/*
** {== Scopes: scope.c.  Root, child, cancel, join.
*/

/* An event that fires when its last coroutine has ended.
**   - every coroutine in it, every child scope and every owner holds one
**     reference. */
struct vg_scope {
  vg_event_t event;
  vg_scope_t *parent;
  vg_link_t link; /* in the parent's children */
  vg_link_t children;
  vg_link_t coroutines;
  size_t count; /* coroutines here and below */
  unsigned cancelled : 1, closed : 1;
};

int vg_scope_new(vg_scheduler_t *s, vg_scope_t *parent, vg_scope_t **scope);
void vg_scope_cancel(vg_scope_t *scope); /* children first, then its own */
void vg_scope_close(vg_scope_t *scope);  /* no new coroutines */
void vg__scope_enter(vg_scope_t *scope, vg_coroutine_t *co);
void vg__scope_leave(vg_scope_t *scope, vg_coroutine_t *co);

/* }================================================================= */


/*
** {== Scheduler: scheduler.c.  Reactor: reactor.c.
*/

/* The iterator of one notification: see callbacks.c. */
typedef struct vg_walk {
  vg_callbacks_t *vector;
  uint32_t next;  /* the first not yet visited */
  uint32_t end;   /* one past the last that was there when it began */
  uint32_t holes; /* removed since */
  struct vg_walk *outer;
} vg_walk_t;

/* The libuv side.  From malloc: a host's loop may outlive the scheduler, and
** then the last handle to close frees it. */
typedef struct vg_reactor {
  uv_loop_t *loop;
  uv_loop_t own_loop;
  uv_timer_t timer;          /* the only one: the first node of the heap */
  uint64_t armed_ns;         /* what `timer` is set to; 0: stopped */
  vg_scheduler_t *scheduler; /* NULL once it has gone */
  vg_link_t handles;         /* every event that libuv knows, by its `link` */
  size_t handle_count;       /* handles opened and not yet closed */
  size_t request_count;      /* requests that libuv has not completed */
  struct vg_polls *polls;    /* poll.c: NULL while nobody has one */
  struct vg_signal_handle *signals; /* signal.c: one for each number */
  unsigned owns_loop : 1, closing : 1, turning : 1, orphan : 1;
  char scratch[65536]; /* where reads land before they are sized */
} vg_reactor_t;

struct vg_scheduler {
  vg_ring_t ready;
  vg_coroutine_t *current;
  vg_coroutine_t *until; /* who runs the scheduler stops when this is next */
  uint32_t since_poll;
  size_t active; /* started events and armed timers that are not hidden */
  size_t live;   /* coroutines spawned and not ended */
  vg_reactor_t *reactor;
  vg_timer_node_t **heap; /* from 1 */
  uint32_t heap_count, heap_size;
  vg_wait_t *free_waits;
  vg_walk_t *walk; /* notifications under way, innermost first */
  vg_microtask_t *micro_first, **micro_last;
  struct vg_switch_entry *switches;
  vg_scope_t *root;
  uint64_t next_id;
  size_t bytes; /* allocated through `alloc` and not yet freed */
  vg_alloc_t alloc;
  void *alloc_data;
  vg_host_t host;
  unsigned running : 1, shutting_down : 1, closed : 1, deadlocks : 1;
  unsigned stopping : 1; /* this run was shut down */
};

/* Memory of the scheduler's allocator; counted. */
void *vg__alloc(vg_scheduler_t *s, size_t size);
void *vg__realloc(vg_scheduler_t *s, void *ptr, size_t old, size_t size);
void vg__free(vg_scheduler_t *s, void *ptr, size_t size);

/* Makes `co`, off the ready queue, the running one. */
static inline void vg__begin(vg_scheduler_t *s, vg_coroutine_t *co) {
  vg_waker_t *w = &co->waker;
  s->current = co;
  if (w->flags & VG_WAKER_F_GRANTED) { /* too late to take it back */
    w->flags &= (uint8_t)~VG_WAKER_F_GRANTED;
    vg_list_remove(&w->first.link);
  }
  w->status = VG_WAKER_RESULT;
  co->state = VG_COROUTINE_RUNNING;
  co->flags |= VG_CO_STARTED;
  co->burst = 0;
}

/* Grows the ring for one more; a coroutine has its place reserved from spawn
** on, so a wake never fails. */
int vg__ring_reserve(vg_scheduler_t *s, size_t count);
void vg__enqueue(vg_coroutine_t *co);
/* The way straight from one coroutine to the next, for a resume function that
** keeps control: the next one, begun, if it is of the same type and nothing
** else is due; else NULL, and resume returns.  Not after a coroutine with
** switch handlers.  (A return from below a longjmp is mispredicted by the
** processor, so the fewer frames there are between two resumes the better.) */
static inline vg_coroutine_t *vg__next(vg_scheduler_t *s,
                                       const vg_coroutine_methods_t *methods) {
  vg_coroutine_t *co;
  if (s->ready.count == 0 || s->micro_first != NULL ||
      s->since_poll + 1 >= VG_RESUMES_PER_POLL)
    return NULL;
  co = s->ready.items[s->ready.head];
  if (co == s->until || vg__comethods(co) != methods ||
      co->waker.status == VG_WAKER_IGNORED ||
      (co->flags & VG_CO_SWITCH_HANDLERS))
    return NULL;
  vg_ring_take(&s->ready);
  s->since_poll++;
  vg__begin(s, co);
  return co;
}

/* One pass of everything that can run now, and no waiting; for hosts. */
void vg__drain(vg_scheduler_t *s);

vg_reactor_t *vg__reactor_new(uv_loop_t *loop);
/* Lets due timers and ready descriptors fire; `wait`: until one does. */
void vg__reactor_turn(vg_reactor_t *r, int wait);
void vg__reactor_free(vg_reactor_t *r, unsigned budget_ms);

/* Every event that libuv knows begins with this.  Its memory is malloc'ed and
** goes when both are true: no reference is left, and libuv does not know it
** any more.  References are the owners' (boxes, wakers, requests), never
** libuv's, so that the last owner to leave can close the handle.
**   - `link` is in reactor->handles from attach to detach, that is from a
**     successful uv_*_init to its close callback;
**   - `shut` closes the handle at once, dropping what is unsent; it may be
**     called twice.  The reactor calls it when it goes. */
typedef struct vg_uv_event {
  vg_event_t event;
  vg_reactor_t *reactor;
  vg_link_t link;
  void (*shut)(struct vg_uv_event *event);
} vg_uv_event_t;

/* Zeroed; the caller owns the first reference.  NULL: no memory. */
void *vg__uv_event_new(vg_scheduler_t *s, size_t size,
                       const vg_event_methods_t *methods, uint32_t flags,
                       void (*shut)(vg_uv_event_t *event));
/* After uv_*_init succeeded. */
void vg__uv_event_attach(vg_uv_event_t *event);
/* Last thing in the close callback: may free the event. */
void vg__uv_event_detach(vg_uv_event_t *event);
/* The `dispose` of these events: shuts the handle if libuv knows it, frees
** the memory if not.  A type that closes more gently has its own, which ends
** here or in `shut`. */
void vg__uv_event_dispose(vg_event_t *event);
/* Requests that libuv has in hand. */
static inline void vg__request_begin(vg_reactor_t *r) { r->request_count++; }
/* Last thing in a completion callback that may run after the scheduler went:
** may free the reactor. */
void vg__request_end(vg_reactor_t *r);
/* Whether the scheduler is still there, for such callbacks. */
static inline int vg__reactor_alive(const vg_reactor_t *r) {
  return r->scheduler != NULL;
}

/* A started event, or background work, that is not hidden. */
static inline void vg__activate(vg_scheduler_t *s) { s->active++; }
static inline void vg__deactivate(vg_scheduler_t *s) { s->active--; }

/* }================================================================= */


/*
** {== Callback vectors: callbacks.c
*/

int vg__callbacks_add(vg_scheduler_t *s, vg_callbacks_t *v, vg_callback_t *cb);
void vg__callbacks_del(vg_scheduler_t *s, vg_callbacks_t *v, vg_callback_t *cb);
/* Calls each that was there at the beginning and still is, once. */
int vg__callbacks_notify(vg_scheduler_t *s, vg_callbacks_t *v,
                         vg_event_t *event, int status, intptr_t value);
/* Lets go of all. */
void vg__callbacks_clear(vg_scheduler_t *s, vg_callbacks_t *v);
void vg__callback_release(vg_callback_t *cb);

/* }================================================================= */


/*
** {== Futures and channels: future.c, channel.c
*/

typedef enum vg_future_state {
  VG_FUTURE_PENDING,
  VG_FUTURE_COMPLETED,
  VG_FUTURE_FAILED,
  VG_FUTURE_CANCELLED
} vg_future_state_t;

/* One outcome, set once; the values are the binding's. */
typedef struct vg_future {
  vg_event_t event;
  uint8_t state;
} vg_future_t;

const char *vg__future_state_name(uint8_t state);
void vg_future_init(vg_future_t *future, vg_scheduler_t *s, uint32_t flags);
/* VG_ESTATE when it is settled already. */
int vg_future_settle(vg_future_t *future, vg_future_state_t how);

/* Where a value is, or goes to, or where the object is that keeps values: a
** Lua thread and an index there.  The core only hands it on. */
typedef struct vg_place {
  void *thread;
  int index;
} vg_place_t;

typedef struct vg_channel vg_channel_t;

/* How values move; none may fail.  `object` is a place where the channel's
** own object is. */
typedef struct vg_channel_values {
  void (*move)(vg_channel_t *ch, vg_place_t from, vg_place_t to);
  void (*store)(vg_channel_t *ch, vg_place_t object, uint32_t slot,
                vg_place_t from);
  void (*load)(vg_channel_t *ch, vg_place_t object, uint32_t slot,
               vg_place_t to);
} vg_channel_values_t;

/* A FIFO of values, and of who waits to send or receive.
**   - receivers wait only while count == 0 and nobody waits to send or was
**     promised a slot; so a send to one of them overtakes nobody;
**   - `promised` senders were woken for a free slot and have not run yet:
**     count + promised <= capacity as long as nothing was given back;
**   - size >= count + receiving: a value that comes back from a receiver that
**     was handed it and will not run always has a place. */
struct vg_channel {
  vg_event_t event;
  const vg_channel_values_t *values;
  uint32_t capacity;
  uint32_t size, head, count; /* the ring of slots */
  uint32_t promised;
  uint32_t receiving; /* receivers that wait or are granted */
  vg_link_t receivers, senders;
  vg_link_t granted;  /* receivers woken with a value, in order of values */
  vg_link_t promises; /* senders woken for a slot */
};

enum { VG_CHANNEL_RECV = 1, VG_CHANNEL_SEND = 2, VG_CHANNEL_TAKEN = 3 };

void vg_channel_init(vg_channel_t *ch, vg_scheduler_t *s, uint32_t capacity,
                     const vg_channel_values_t *values, uint32_t flags);

/* At once, or not at all.  1: done; 0: it would have to wait; VG_ECLOSED. */
int vg_channel_try_send(vg_channel_t *ch, vg_place_t object, vg_place_t from);
int vg_channel_try_recv(vg_channel_t *ch, vg_place_t object, vg_place_t to);
/* Whether try_recv would not give 0. */
int vg_channel_is_ready(const vg_channel_t *ch);

/* Slots the ring must have before `more` values are stored or as many more
** receivers wait: the binding makes room first (that may raise). */
uint32_t vg_channel_slots_needed(const vg_channel_t *ch, uint32_t more);
/* New size; the binding has moved slot (head + i) to slot i. */
void vg_channel_resized(vg_channel_t *ch, uint32_t size);

/* Adds a subscription to the wait being prepared.  `index`: of a sender's
** value, or of the channel's object, on the waiter's stack. */
int vg_channel_wait(vg_channel_t *ch, vg_coroutine_t *co, int kind, int index);

/* A sender that was woken for a slot (waker.value VG_CHANNEL_SEND) runs:
** its value goes in.  VG_ECLOSED if the channel was closed before. */
int vg_channel_fulfil(vg_channel_t *ch, vg_place_t object, vg_place_t from);
/* A receiver that was handed a value (VG_CHANNEL_RECV) runs and has it. */
void vg_channel_received(vg_channel_t *ch);

void vg_channel_close(vg_channel_t *ch);

/* }================================================================= */


/*
** {== Gathering: gather.c.  One event over many, for the await_* family.
*/

typedef struct vg_gather_member {
  vg_callback_t base;
  struct vg_gather *gather;
  vg_event_t *event;
  intptr_t value;
  int32_t status;
  unsigned subscribed : 1, started : 1, settled : 1;
  unsigned owned : 1; /* a coroutine that goes when it is not needed */
} vg_gather_member_t;

/* Fires when `need` members have succeeded, when all have settled, or at the
** first failure if fail_fast.
**   - members are subscribed from start to stop;
**   - order[0 .. settled) are the settled ones, in the order of settling. */
typedef struct vg_gather {
  vg_event_t event;
  uint32_t count, need;
  uint32_t settled, succeeded;
  int fail_fast;
  uint32_t *order;
  vg_gather_member_t *members;
} vg_gather_t;

void vg_gather_init(vg_gather_t *gather, vg_scheduler_t *s, uint32_t flags);
/* `members` and `order` have room for `count`; each is prepared by this. */
void vg_gather_member(vg_gather_t *gather, uint32_t index, vg_event_t *event);
/* A member whose outcome is there already counts without a subscription. */
void vg_gather_ready(vg_gather_t *gather, uint32_t index);
int vg_gather_done(const vg_gather_t *gather);

/* }================================================================= */


/*
** {== Reports: report.c
*/

/* "queued", "running"... */
const char *vg__state_name(uint8_t state);
/* One line: name or id, state, where spawned, where it waits, on what. */
int vg__describe(const vg_coroutine_t *co, const char *name, char *buffer,
                 size_t size);
/* The same without what it waits for: so the info of an awaited coroutine does
** not describe what that one awaits, and so on. */
int vg__identify(const vg_coroutine_t *co, const char *name, char *buffer,
                 size_t size);
/* What it waits for: each event's info, separated by ", ". */
int vg__describe_wait(const vg_coroutine_t *co, char *buffer, size_t size);
/* Calls `visit` for each coroutine that has not ended, scope by scope. */
void vg__each_coroutine(vg_scheduler_t *s,
                        void (*visit)(vg_coroutine_t *co, void *data),
                        void *data);

/* }================================================================= */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
