/*
** callbacks.c: the vector of an event's subscribers.
**
** It may change while it is walked.  A walk visits the elements that were
** there when it began, in order:
**
**     [0, next)    visited, the callback that runs now being next - 1
**     [next, end)  still to be visited in this walk
**     [end, len)   added since it began: not visited in this walk
**
** Removing an element during a walk leaves a hole, and the end of the walk
** closes all holes at once: nothing moves under the walker, so nobody is
** skipped, nobody is told twice, and waiters wake in the order in which they
** came.  Removing at any other time fills the hole with the last element;
** that is O(1) and costs the order.
*/

#include <string.h>

#include "internal.h"

static vg_callback_t **items(vg_callbacks_t *v) {
  return v->capacity > 0 ? v->items.many : &v->items.one;
}

static void place(vg_callback_t **array, uint32_t index, vg_callback_t *cb) {
  array[index] = cb;
  cb->index = index;
}

static vg_walk_t *find_walk(vg_scheduler_t *s, const vg_callbacks_t *v) {
  vg_walk_t *walk = s->walk;
  while (walk->vector != v) walk = walk->outer;
  return walk;
}

void vg__callback_release(vg_callback_t *cb) {
  if (--cb->ref_count == 0 && cb->dispose != NULL) cb->dispose(cb);
}

static int grow(vg_scheduler_t *s, vg_callbacks_t *v) {
  uint32_t capacity = v->capacity > 0 ? 2u * v->capacity : 4;
  vg_callback_t **many;

  if (v->capacity == 0) {
    many = vg__alloc(s, capacity * sizeof *many);
    if (many == NULL) return UV_ENOMEM;
    if (v->length == 1) many[0] = v->items.one;
  } else {
    many = vg__realloc(s, v->items.many, v->capacity * sizeof *many,
                       capacity * sizeof *many);
    if (many == NULL) return UV_ENOMEM;
  }
  v->items.many = many;
  v->capacity = capacity & 0x7fffffffu;
  return 0;
}

/* An empty vector owns no memory: the objects that hold one have no
** finalizer. */
static void shrink(vg_scheduler_t *s, vg_callbacks_t *v) {
  if (v->length == 0 && v->capacity > 0) {
    vg__free(s, v->items.many, v->capacity * sizeof *v->items.many);
    v->capacity = 0;
    v->items.one = NULL;
  }
}

int vg__callbacks_add(vg_scheduler_t *s, vg_callbacks_t *v, vg_callback_t *cb) {
  if (v->length == (v->capacity > 0 ? v->capacity : 1)) {
    int err = grow(s, v);
    if (err < 0) return err;
  }
  place(items(v), v->length++, cb);
  cb->ref_count++;
  return 0;
}

void vg__callbacks_del(vg_scheduler_t *s, vg_callbacks_t *v,
                       vg_callback_t *cb) {
  vg_callback_t **array = items(v);
  uint32_t hole = cb->index;

  if (hole >= v->length || array[hole] != cb) return; /* not in here */
  if (v->walking) {
    array[hole] = NULL;
    find_walk(s, v)->holes++;
  } else {
    v->length--;
    if (hole != v->length) place(array, hole, array[v->length]);
    shrink(s, v);
  }
  vg__callback_release(cb);
}

static void close_holes(vg_callbacks_t *v) {
  vg_callback_t **array = items(v);
  uint32_t from, to = 0;

  for (from = 0; from < v->length; from++)
    if (array[from] != NULL) place(array, to++, array[from]);
  v->length = to;
}

int vg__callbacks_notify(vg_scheduler_t *s, vg_callbacks_t *v,
                         vg_event_t *event, int status, intptr_t value) {
  vg_walk_t walk;

  if (v->walking) return VG_ENESTED;
  if (v->length == 0) return 0;
  walk.vector = v;
  walk.next = 0;
  walk.end = v->length;
  walk.holes = 0;
  walk.outer = s->walk;
  s->walk = &walk;
  v->walking = 1;
  while (walk.next < walk.end) {
    vg_callback_t *cb = items(v)[walk.next++];
    if (cb != NULL) cb->notify(cb, event, status, value);
  }
  v->walking = 0;
  s->walk = walk.outer;
  if (walk.holes > 0) close_holes(v);
  shrink(s, v);
  return 0;
}

void vg__callbacks_clear(vg_scheduler_t *s, vg_callbacks_t *v) {
  uint32_t i;
  for (i = v->length; i > 0; i--)
    if (items(v)[i - 1] != NULL) vg__callbacks_del(s, v, items(v)[i - 1]);
}
