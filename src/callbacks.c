/*
** callbacks.c: the vector of an event's subscribers.
**
** It may change while it is walked.  A walk knows three regions of the array:
**
**     [0, next)    visited, the callback that runs now being next - 1
**     [next, end)  still to be visited in this walk
**     [end, len)   added since it began: not visited in this walk
**
** Removing an element fills its place from the end of its own region, and
** the hole that leaves there from the end of the next region, so that no
** element ever crosses a border the wrong way: nobody is skipped, nobody is
** told twice.  That is O(1) and costs the order of delivery, which the vector
** does not promise after a removal.
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

int vg__callbacks_add(vg_scheduler_t *s, vg_callbacks_t *v,
                      vg_callback_t *cb) {
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
    vg_walk_t *walk = find_walk(s, v);
    if (hole < walk->next) {
      uint32_t last = --walk->next;
      if (hole != last) place(array, hole, array[last]);
      hole = last;
    }
    if (hole < walk->end) {
      uint32_t last = --walk->end;
      if (hole != last) place(array, hole, array[last]);
      hole = last;
    }
  }
  v->length--;
  if (hole != v->length) place(array, hole, array[v->length]);
  if (!v->walking) shrink(s, v);
  vg__callback_release(cb);
}

int vg__callbacks_notify(vg_scheduler_t *s, vg_callbacks_t *v,
                         vg_event_t *event, int status, intptr_t value) {
  vg_walk_t walk;

  if (v->walking) return VG_ENESTED;
  if (v->length == 0) return 0;
  walk.vector = v;
  walk.next = 0;
  walk.end = v->length;
  walk.outer = s->walk;
  s->walk = &walk;
  v->walking = 1;
  while (walk.next < walk.end) {
    vg_callback_t *cb = items(v)[walk.next++];
    cb->notify(cb, event, status, value);
  }
  v->walking = 0;
  s->walk = walk.outer;
  shrink(s, v);
  return 0;
}

void vg__callbacks_clear(vg_scheduler_t *s, vg_callbacks_t *v) {
  while (v->length > 0) vg__callbacks_del(s, v, items(v)[v->length - 1]);
  if (!v->walking) shrink(s, v);
}
