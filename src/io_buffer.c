/*
** io_buffer.c: bytes that were read and not yet taken, and the search in them.
**
** Memory comes in powers of two.  When the last byte is taken a large block
** goes and a small one stays: short messages cost no allocation each, and an
** idle connection holds next to nothing.
*/

#include <stdlib.h>
#include <string.h>

#include "io.h"

#define MIN_CAPACITY 64
#define KEPT_CAPACITY 128

void vg__buffer_clear(vg_buffer_t *b) {
  free(b->data);
  b->data = NULL;
  b->start = b->end = b->capacity = 0;
}

/* Capacities are powers of two. */
static int grow(vg_buffer_t *b, size_t needed) {
  size_t capacity = b->capacity > 0 ? b->capacity : MIN_CAPACITY;
  char *data;

  while (capacity < needed) {
    if (capacity > SIZE_MAX / 2) return UV_ENOMEM;
    capacity *= 2;
  }
  data = realloc(b->data, capacity);
  if (data == NULL) return UV_ENOMEM;
  b->data = data;
  b->capacity = capacity;
  return 0;
}

int vg__buffer_reserve(vg_buffer_t *b, size_t size) {
  size_t length = vg__buffer_length(b);

  if (size <= b->capacity - b->end) return 0;
  if (size > SIZE_MAX - length) return UV_ENOMEM;
  /* Moving must not be done again and again for a few bytes in front. */
  if (b->start >= length && size <= b->capacity - length) {
    memmove(b->data, b->data + b->start, length);
    b->start = 0;
    b->end = length;
    return 0;
  }
  return grow(b, b->end + size);
}

int vg__buffer_append(vg_buffer_t *b, const char *data, size_t size) {
  int err = vg__buffer_reserve(b, size);
  if (err < 0) return err;
  memcpy(b->data + b->end, data, size);
  b->end += size;
  return 0;
}

void vg__buffer_consume(vg_buffer_t *b, size_t size) {
  b->start += size;
  if (b->start < b->end) return;
  b->start = b->end = 0;
  if (b->capacity > KEPT_CAPACITY) vg__buffer_clear(b);
}

static const char *find_separator(const char *data, size_t length,
                                  const char *separator, size_t n) {
  const char *last; /* where it could begin */

  if (length < n) return NULL;
  last = data + (length - n);
  while (data <= last) {
    data = memchr(data, separator[0], (size_t)(last - data) + 1);
    if (data == NULL || memcmp(data, separator, n) == 0) return data;
    data++;
  }
  return NULL;
}

/* `keep`: the end goes into the result, too. */
static int found_part(vg_found_t *found, size_t take, size_t skip, int keep,
                      size_t limit) {
  if (take > limit) return VG_EMSGSIZE;
  found->take = keep ? take + skip : take;
  found->skip = keep ? 0 : skip;
  return 1;
}

static int find_line(const char *data, size_t length, const vg_want_t *want,
                     int end, size_t *scanned, vg_found_t *found) {
  const char *newline = *scanned < length
                            ? memchr(data + *scanned, '\n', length - *scanned)
                            : NULL;
  if (newline != NULL) {
    size_t take = (size_t)(newline - data), skip = 1;
    *scanned = take; /* found at once when asked again */
    if (take > 0 && newline[-1] == '\r') {
      take--;
      skip++;
    }
    return found_part(found, take, skip, want->keep_ends, want->limit);
  }
  *scanned = length;
  if (end == UV_EOF && length > 0)
    return found_part(found, length, 0, 0, want->limit);
  /* The last byte may be the \r of the line's end. */
  if (length > 0 && length - 1 > want->limit) return VG_EMSGSIZE;
  return end;
}

static int find_until(const char *data, size_t length, const vg_want_t *want,
                      int end, size_t *scanned, vg_found_t *found) {
  size_t n = want->separator_length;
  const char *at =
      find_separator(data + *scanned, length - *scanned, want->separator, n);
  if (at != NULL) {
    *scanned = (size_t)(at - data);
    return found_part(found, *scanned, n, 0, want->limit);
  }
  if (length >= n) *scanned = length - n + 1;
  if (*scanned > want->limit) return VG_EMSGSIZE;
  return end;
}

int vg__buffer_find(const vg_buffer_t *b, const vg_want_t *want, int end,
                    size_t *scanned, vg_found_t *found) {
  size_t length = vg__buffer_length(b);
  const char *data = length > 0 ? b->data + b->start : "";

  switch ((vg_read_mode_t)want->mode) {
    case VG_READ_SOME:
      if (length == 0) return end;
      return found_part(found, length < want->limit ? length : want->limit, 0,
                        0, SIZE_MAX);
    case VG_READ_EXACT:
      if (length >= want->limit && (length > 0 || end == 0))
        return found_part(found, want->limit, 0, 0, SIZE_MAX);
      if (end == UV_EOF && length > 0)
        return found_part(found, length, 0, 0, SIZE_MAX);
      return end;
    case VG_READ_LINE:
      return find_line(data, length, want, end, scanned, found);
    case VG_READ_UNTIL:
      return find_until(data, length, want, end, scanned, found);
    case VG_READ_ALL: break;
  }
  if (length > want->limit) return VG_EMSGSIZE;
  if (end != UV_EOF) return end;
  return found_part(found, length, 0, 0, SIZE_MAX);
}
