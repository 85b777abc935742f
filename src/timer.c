/*
** timer.c: the moments everybody waits for, in one heap; and the timer event.
**
** Sleeps, limits, timeout blocks and timer events are nodes of one four-ary
** heap, embedded in what waits.  The reactor keeps one uv_timer_t set to the
** first of them: a handle for each would cost 200 bytes and twice the CPU.
**
** Never early: due times are nanoseconds of the precise clock, and a node
** fires only when that clock has passed it, whatever libuv's cached
** millisecond clock says.
*/

#include <stdio.h>
#include <string.h>

#include "internal.h"

#define ARITY 4u

/* The heap starts at index 1; the children of i are 4i-2 ... 4i+1. */
static uint32_t parent_of(uint32_t i) { return (i + 2) / ARITY; }
static uint32_t child_of(uint32_t i) { return ARITY * i - 2; }

static void put(vg_scheduler_t *s, uint32_t i, vg_timer_node_t *node) {
  s->heap[i] = node;
  node->index = i;
}

static void sift_up(vg_scheduler_t *s, uint32_t i, vg_timer_node_t *node) {
  while (i > 1) {
    uint32_t parent = parent_of(i);
    if (s->heap[parent]->due_ns <= node->due_ns) break;
    put(s, i, s->heap[parent]);
    i = parent;
  }
  put(s, i, node);
}

static void sift_down(vg_scheduler_t *s, uint32_t i, vg_timer_node_t *node) {
  for (;;) {
    uint32_t child = child_of(i), best = child, last = child + ARITY, k;
    if (child > s->heap_count) break;
    if (last > s->heap_count + 1) last = s->heap_count + 1;
    for (k = child + 1; k < last; k++)
      if (s->heap[k]->due_ns < s->heap[best]->due_ns) best = k;
    if (s->heap[best]->due_ns >= node->due_ns) break;
    put(s, i, s->heap[best]);
    i = best;
  }
  put(s, i, node);
}

static int reserve(vg_scheduler_t *s) {
  uint32_t size = s->heap_size > 0 ? 2 * s->heap_size : 16;
  vg_timer_node_t **heap;

  if (s->heap_count + 1 < s->heap_size) return 0;
  heap =
      vg__realloc(s, s->heap, s->heap_size * sizeof *heap, size * sizeof *heap);
  if (heap == NULL) return UV_ENOMEM;
  s->heap = heap;
  s->heap_size = size;
  return 0;
}

int vg__timer_arm(vg_scheduler_t *s, vg_timer_node_t *node, uint64_t due_ns) {
  int err;

  if (node->index != 0) vg__timer_disarm(s, node);
  err = reserve(s);
  if (err < 0) return err;
  node->due_ns = due_ns;
  sift_up(s, ++s->heap_count, node);
  if (!node->hidden) vg__activate(s);
  return 0;
}

void vg__timer_disarm(vg_scheduler_t *s, vg_timer_node_t *node) {
  uint32_t i = node->index;
  vg_timer_node_t *last;

  if (i == 0) return;
  last = s->heap[s->heap_count--];
  if (last != node) {
    if (i > 1 && s->heap[parent_of(i)]->due_ns > last->due_ns)
      sift_up(s, i, last);
    else
      sift_down(s, i, last);
  }
  node->index = 0;
  if (!node->hidden) vg__deactivate(s);
  if (s->heap_size > 1024 && s->heap_count < s->heap_size / 8) {
    uint32_t size = s->heap_size / 4;
    vg_timer_node_t **heap = vg__realloc(
        s, s->heap, s->heap_size * sizeof *heap, size * sizeof *heap);
    if (heap != NULL) { /* else it stays large */
      s->heap = heap;
      s->heap_size = size;
    }
  }
}

uint64_t vg__timers_next(const vg_scheduler_t *s) {
  return s->heap_count > 0 ? s->heap[1]->due_ns : 0;
}

void vg__timers_expire(vg_scheduler_t *s) {
  uint64_t now = uv_hrtime();

  while (s->heap_count > 0 && s->heap[1]->due_ns <= now) {
    vg_timer_node_t *node = s->heap[1];
    vg__timer_disarm(s, node);
    switch (node->kind) {
      case VG_NODE_WAKER:
        vg_wake_timeout(VG_CONTAINER(node, vg_coroutine_t, waker.timer));
        break;
      case VG_NODE_TIMER:
        vg__timer_expired(VG_CONTAINER(node, vg_timer_t, node));
        break;
      case VG_NODE_BLOCK:
        vg__block_expired(VG_CONTAINER(node, vg_block_t, timer));
        break;
      default: {
        vg_alarm_t *alarm = VG_CONTAINER(node, vg_alarm_t, node);
        alarm->fire(alarm);
      }
    }
  }
}

uint64_t vg__deadline(double seconds) {
  uint64_t now = uv_hrtime();
  double ns = seconds * 1e9;
  uint64_t whole;
  if (ns >= 9e18) return UINT64_MAX;
  whole = (uint64_t)ns;
  return now + whole + ((double)whole < ns); /* rounded up */
}


/*
** {== The timer event.  Its due time is fixed when it is made; it is armed
** only while somebody waits, and what has passed meanwhile is found then.
*/

static int timer_start(vg_event_t *event) {
  vg_timer_t *timer = (vg_timer_t *)event;
  timer->node.hidden = 1; /* vg_event_start counts */
  return vg__timer_arm(event->scheduler, &timer->node, timer->due_ns);
}

static void timer_stop(vg_event_t *event) {
  vg__timer_disarm(event->scheduler, &((vg_timer_t *)event)->node);
}

/* A one-shot timer whose time has come stays fired; ticks that have passed
** are an outcome until they are taken. */
static int timer_replay(vg_event_t *event, vg_callback_t *callback) {
  vg_timer_t *timer = (vg_timer_t *)event;
  if (event->flags & VG_EVENT_CLOSED) {
    if (timer->period_ns != 0 || timer->due_ns == UINT64_MAX) return 0;
  } else if (uv_hrtime() < timer->due_ns) {
    return 0;
  }
  if (callback != NULL) callback->notify(callback, event, timer->status, 1);
  return 1;
}

static int timer_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_timer_t *timer = (const vg_timer_t *)event;
  uint64_t now = uv_hrtime();
  double left = timer->due_ns > now ? (double)(timer->due_ns - now) / 1e9 : 0.0;
  if (event->flags & VG_EVENT_CLOSED)
    return snprintf(buffer, size, "timer (closed)");
  if (timer->due_ns == UINT64_MAX)
    return snprintf(buffer, size, "timer (never)");
  if (timer->period_ns != 0)
    return snprintf(buffer, size, "timer (every %gs, next in %.3fs)",
                    (double)timer->period_ns / 1e9, left);
  return snprintf(buffer, size, "timer (in %.3fs)", left);
}

static void timer_dispose(vg_event_t *event) {
  vg_timer_close((vg_timer_t *)event);
  if (!(event->flags & VG_EVENT_NO_FREE))
    vg__free(event->scheduler, event, sizeof(vg_timer_t));
}

const vg_event_methods_t vg_timer_methods = {
    .name = "timer",
    .start = timer_start,
    .stop = timer_stop,
    .replay = timer_replay,
    .dispose = timer_dispose,
    .info = timer_info,
};

void vg_timer_init(vg_timer_t *timer, vg_scheduler_t *s, uint64_t due_ns,
                   uint64_t period_ns, uint32_t flags) {
  vg_event_init(&timer->event, s, &vg_timer_methods, flags);
  memset(&timer->node, 0, sizeof timer->node);
  timer->node.kind = VG_NODE_TIMER;
  timer->due_ns = due_ns;
  timer->period_ns = period_ns;
  timer->status = 0;
}

uint64_t vg_timer_ticks(vg_timer_t *timer, uint64_t now_ns) {
  uint64_t ticks;
  if (timer->period_ns == 0) return now_ns >= timer->due_ns;
  if (now_ns < timer->due_ns) return 0;
  ticks = (now_ns - timer->due_ns) / timer->period_ns + 1;
  timer->due_ns += ticks * timer->period_ns; /* the phase is kept */
  return ticks;
}

void vg__timer_expired(vg_timer_t *timer) {
  if (timer->period_ns == 0) {
    vg_event_notify_and_close(&timer->event, timer->status, 1);
  } else {
    uint64_t ticks = vg_timer_ticks(timer, uv_hrtime());
    /* Taken by one who came late?  These have waited for it, too. */
    if (ticks == 0) ticks = 1;
    /* The waiters leave, and with the last of them the node is disarmed; a
    ** subscriber that stays finds it armed for the next tick. */
    vg__timer_arm(timer->event.scheduler, &timer->node, timer->due_ns);
    vg_event_notify(&timer->event, 0, (intptr_t)ticks);
  }
}

/* Who waits is told; later waits fail. */
void vg_timer_close(vg_timer_t *timer) {
  if (timer->event.flags & VG_EVENT_CLOSED) return;
  timer->due_ns = UINT64_MAX;
  vg_event_notify_and_close(&timer->event, VG_ECLOSED, 0);
}

/* }================================================================= */
