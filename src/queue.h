/*
** queue.h: the intrusive list and the ready ring, inline.
*/

#ifndef VG_QUEUE_H
#define VG_QUEUE_H

#include <stddef.h>

#define VG_CONTAINER(pointer, type, field) \
  ((type *)((char *)(pointer)-offsetof(type, field)))

/* A circular list with a head that is not an element.  An element that is in
** no list has next == NULL. */
typedef struct vg_link {
  struct vg_link *prev;
  struct vg_link *next;
} vg_link_t;

static inline void vg_list_init(vg_link_t *head) {
  head->prev = head->next = head;
}

static inline int vg_list_empty(const vg_link_t *head) {
  return head->next == head;
}

static inline int vg_linked(const vg_link_t *link) {
  return link->next != NULL;
}

static inline void vg_list_append(vg_link_t *head, vg_link_t *link) {
  link->prev = head->prev;
  link->next = head;
  head->prev->next = link;
  head->prev = link;
}

static inline void vg_list_remove(vg_link_t *link) {
  link->prev->next = link->next;
  link->next->prev = link->prev;
  link->prev = link->next = NULL;
}

/* A ring of coroutine pointers; `mask` + 1 is its size, a power of two. */
typedef struct vg_ring {
  struct vg_coroutine **items;
  size_t mask;
  size_t head;
  size_t count;
} vg_ring_t;

static inline struct vg_coroutine *vg_ring_take(vg_ring_t *ring) {
  struct vg_coroutine *first;
  if (ring->count == 0) return NULL;
  first = ring->items[ring->head];
  ring->head = (ring->head + 1) & ring->mask;
  ring->count--;
  return first;
}

/* Both need room: see vg__ring_reserve. */
static inline void vg_ring_push(vg_ring_t *ring, struct vg_coroutine *item) {
  ring->items[(ring->head + ring->count) & ring->mask] = item;
  ring->count++;
}

static inline void vg_ring_push_front(vg_ring_t *ring,
                                      struct vg_coroutine *item) {
  ring->head = (ring->head - 1) & ring->mask;
  ring->items[ring->head] = item;
  ring->count++;
}

#endif
