/*
** socket.c: sockets where libuv does not say enough or does too much.
**
** libuv's server closes every waiting client when the process runs out of
** descriptors, reports an address in use late, cuts long paths of unix
** sockets, and cannot say "abstract".  So servers listen and accept here, and
** unix sockets connect here; the rest of a connection's life is libuv's.
** A port to a system without these calls replaces this file.
*/

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "io.h"

#define ERROR(number) uv_translate_sys_error(number)

void vg__socket_close(int fd) { close(fd); }

/* A socket that neither blocks nor is inherited. */
static int new_socket(int family) {
#if defined(SOCK_NONBLOCK) && defined(SOCK_CLOEXEC)
  int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  return fd >= 0 ? fd : ERROR(errno);
#else
  int fd = socket(family, SOCK_STREAM, 0);
  if (fd < 0) return ERROR(errno);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return fd;
#endif
}

static int set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0 ? 0
                                                                : ERROR(errno);
}

static int bind_and_listen(int fd, const struct sockaddr *address,
                           socklen_t length, int backlog) {
  if (bind(fd, address, length) != 0) return ERROR(errno);
  if (listen(fd, backlog > 0 ? backlog : SOMAXCONN) != 0) return ERROR(errno);
  return 0;
}

static socklen_t address_length(const vg_address_t *address) {
  return address->any.sa_family == AF_INET6 ? sizeof address->v6
                                            : sizeof address->v4;
}

int vg__socket_listen(const vg_address_t *address,
                      const vg_listen_options_t *options) {
  int family = address->any.sa_family;
  int fd = new_socket(family), err;

  if (fd < 0) return fd;
  err = set_option(fd, SOL_SOCKET, SO_REUSEADDR, (int)options->reuseaddr);
  if (err == 0 && options->reuseport)
#ifdef SO_REUSEPORT
    err = set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
#else
    err = UV_ENOTSUP;
#endif
  if (err == 0 && family == AF_INET6)
    err = set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, (int)options->ipv6only);
  if (err == 0)
    err = bind_and_listen(fd, &address->any, address_length(address),
                          options->backlog);
  if (err == 0) return fd;
  close(fd);
  return err;
}

int vg__socket_listen_path(const char *path, size_t length, int backlog) {
  struct sockaddr_un address;
  int size = vg__socket_path(path, length, (char *)&address, sizeof address);
  int fd, err;

  if (size < 0) return size;
  fd = new_socket(AF_UNIX);
  if (fd < 0) return fd;
  err = bind_and_listen(fd, (struct sockaddr *)&address, (socklen_t)size,
                        backlog);
  if (err == 0) return fd;
  close(fd);
  return err;
}

int vg__socket_accept(int fd, vg_address_t *peer) {
  struct sockaddr_storage address;
  socklen_t size = sizeof address;
  int client;

  memset(&address, 0, sizeof address);
  do {
#if defined(__linux__)
    client = accept4(fd, (struct sockaddr *)&address, &size, SOCK_CLOEXEC);
#else
    client = accept(fd, (struct sockaddr *)&address, &size);
#endif
  } while (client < 0 && errno == EINTR);
  if (client < 0) return ERROR(errno);
#if !defined(__linux__)
  fcntl(client, F_SETFD, FD_CLOEXEC);
#endif
  memcpy(peer, &address, sizeof *peer);
  return client;
}

int vg__socket_address(int fd, vg_address_t *address) {
  socklen_t size = sizeof *address;
  return getsockname(fd, &address->any, &size) == 0 ? 0 : ERROR(errno);
}

/* 108 bytes on Linux, of which a path uses 107 and a zero, and an abstract
** name all: it begins with a zero and may contain others. */
int vg__socket_path(const char *path, size_t length, char *address,
                    size_t size) {
  struct sockaddr_un un;
  int is_abstract = length > 1 && path[0] == '\0';

  if (size < sizeof un) return UV_EINVAL;
#if !defined(__linux__)
  if (is_abstract) return UV_EINVAL;
#endif
  if (length == 0 || (!is_abstract && memchr(path, '\0', length) != NULL))
    return UV_EINVAL;
  if (length + (is_abstract ? 0 : 1) > sizeof un.sun_path)
    return UV_ENAMETOOLONG;
  memset(&un, 0, sizeof un);
  un.sun_family = AF_UNIX;
  memcpy(un.sun_path, path, length);
  memcpy(address, &un, sizeof un);
  return (int)(offsetof(struct sockaddr_un, sun_path) + length +
               (is_abstract ? 0 : 1));
}

int vg__socket_unix(void) { return new_socket(AF_UNIX); }

int vg__socket_connect(int fd, const char *address, uint32_t length) {
  struct sockaddr_un un;
  int result;

  memcpy(&un, address, sizeof un);
  do {
    result = connect(fd, (struct sockaddr *)&un, (socklen_t)length);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : ERROR(errno);
}

static int option_name(int option, int *level, int *name) {
  *level = IPPROTO_TCP;
  switch (option) {
    case VG_SOCKET_NODELAY: *name = TCP_NODELAY; return 0;
    case VG_SOCKET_KEEPALIVE:
      *level = SOL_SOCKET;
      *name = SO_KEEPALIVE;
      return 0;
#ifdef TCP_USER_TIMEOUT
    case VG_SOCKET_USER_TIMEOUT: *name = TCP_USER_TIMEOUT; return 0;
#endif
    default: return UV_ENOTSUP;
  }
}

int vg__socket_get(int fd, int option, int *value) {
  socklen_t size = sizeof *value;
  int level, name, err = option_name(option, &level, &name);
  if (err < 0) return err;
  return getsockopt(fd, level, name, value, &size) == 0 ? 0 : ERROR(errno);
}

int vg__socket_set(int fd, int option, int value) {
  int level, name, err = option_name(option, &level, &name);
  return err < 0 ? err : set_option(fd, level, name, value);
}

int vg__socket_name(int fd, int peer, char *buffer, size_t *size) {
  struct sockaddr_un un;
  socklen_t length = sizeof un;
  size_t n;
  int result;

  memset(&un, 0, sizeof un);
  result = peer ? getpeername(fd, (struct sockaddr *)&un, &length)
                : getsockname(fd, (struct sockaddr *)&un, &length);
  if (result != 0) return ERROR(errno);
  if (un.sun_family != AF_UNIX) return UV_EINVAL;
  n = length > offsetof(struct sockaddr_un, sun_path)
          ? length - offsetof(struct sockaddr_un, sun_path)
          : 0;
  if (n > sizeof un.sun_path) n = sizeof un.sun_path;
  if (n > 0 && un.sun_path[0] != '\0') { /* with or without its zero */
    const char *zero = memchr(un.sun_path, '\0', n);
    if (zero != NULL) n = (size_t)(zero - un.sun_path);
  }
  if (n > *size) return UV_ENOBUFS;
  memcpy(buffer, un.sun_path, n);
  *size = n;
  return 0;
}


/*
** {== Numeric addresses
*/

int vg_address_parse(vg_address_t *address, const char *host, int port) {
  const char *scope = strchr(host, '%');

  memset(address, 0, sizeof *address);
  if (uv_ip4_addr(host, port, &address->v4) == 0) return 0;
  memset(address, 0, sizeof *address);
  if (uv_ip6_addr(host, port, &address->v6) != 0) return UV_EINVAL;
  if (scope != NULL && address->v6.sin6_scope_id == 0) return UV_EINVAL;
  return 0;
}

int vg_address_port(const vg_address_t *address) {
  return ntohs(address->any.sa_family == AF_INET6 ? address->v6.sin6_port
                                                  : address->v4.sin_port);
}

void vg_address_host(const vg_address_t *address, char *buffer, size_t size) {
  size_t length;

  if (address->any.sa_family == AF_INET) {
    if (uv_ip4_name(&address->v4, buffer, size) == 0) return;
  } else if (address->any.sa_family == AF_INET6 &&
             uv_ip6_name(&address->v6, buffer, size) == 0) {
    if (address->v6.sin6_scope_id != 0) {
      char scope[UV_IF_NAMESIZE];
      size_t n = sizeof scope;
      if (uv_if_indextoname(address->v6.sin6_scope_id, scope, &n) == 0) {
        length = strlen(buffer);
        snprintf(buffer + length, size - length, "%%%s", scope);
      }
    }
    return;
  }
  snprintf(buffer, size, "?");
}

void vg_address_text(const vg_address_t *address, char *buffer, size_t size) {
  char host[VG_ADDRESS_SIZE];

  vg_address_host(address, host, sizeof host);
  if (host[0] == '?')
    snprintf(buffer, size, "?");
  else
    snprintf(buffer, size,
             address->any.sa_family == AF_INET6 ? "[%s]:%d" : "%s:%d", host,
             vg_address_port(address));
}

/* }================================================================= */
