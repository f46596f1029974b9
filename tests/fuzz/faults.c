/* Preloaded into a command: the n-th call of one function on files below a folder fails.
 *
 *   FAULT_FOLDER  absolute path        FAULT_CALL   write, fsync, open, read, mmap, rename, link
 *   FAULT_NUMBER  from 1; 0: none      FAULT_COUNT  file with an int64: calls so far, of all processes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *folder, *call;
static int64_t number, *count;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("FAULT_COUNT"), *text = getenv("FAULT_NUMBER");
  folder = getenv("FAULT_FOLDER");
  call = getenv("FAULT_CALL");
  if (!file || !text || !folder || !call) return;
  int handle = REAL(open)(file, O_RDWR);
  if (handle < 0) return;
  void *at = REAL(mmap)(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
  close(handle);
  if (at == MAP_FAILED) return;
  number = atoll(text);
  count = at;
}

static int counts(const char *name, const char *path) {
  if (!count || !path || strcmp(name, call) || strncmp(path, folder, strlen(folder))) return 0;
  return __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) == number;
}

static int at_path(const char *name, const char *path) {
  char whole[4096];
  if (!count || !path || strcmp(name, call)) return 0;
  if (path[0] == '/') return counts(name, path);
  if (!getcwd(whole, 2048) || strlen(path) > 2000) return 0;
  return counts(name, strcat(strcat(whole, "/"), path));
}

static int at_file(const char *name, int handle) {
  char link[64], path[4096];
  if (!count || strcmp(name, call)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return counts(name, path);
}

#define FAIL(test, error, value) \
  if (test) { errno = error; return value; }

ssize_t write(int f, const void *d, size_t n) {
  FAIL(at_file("write", f), ENOSPC, -1)
  return REAL(write)(f, d, n);
}
ssize_t pwrite64(int f, const void *d, size_t n, off64_t o) {
  FAIL(at_file("write", f), ENOSPC, -1)
  return REAL(pwrite64)(f, d, n, o);
}
ssize_t writev(int f, const struct iovec *v, int n) {
  FAIL(at_file("write", f), ENOSPC, -1)
  return REAL(writev)(f, v, n);
}
int fsync(int f) {
  FAIL(at_file("fsync", f), EIO, -1)
  return REAL(fsync)(f);
}
int fdatasync(int f) {
  FAIL(at_file("fsync", f), EIO, -1)
  return REAL(fdatasync)(f);
}
ssize_t read(int f, void *d, size_t n) {
  FAIL(at_file("read", f), EIO, -1)
  return REAL(read)(f, d, n);
}
ssize_t pread64(int f, void *d, size_t n, off64_t o) {
  FAIL(at_file("read", f), EIO, -1)
  return REAL(pread64)(f, d, n, o);
}
#define MODE(flags) \
  mode_t mode = 0; \
  if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }
int open(const char *p, int flags, ...) {
  MODE(flags)
  FAIL(at_path("open", p), EMFILE, -1)
  return REAL(open)(p, flags, mode);
}
int open64(const char *p, int flags, ...) {
  MODE(flags)
  FAIL(at_path("open", p), EMFILE, -1)
  return REAL(open64)(p, flags, mode);
}
int openat(int at, const char *p, int flags, ...) {
  MODE(flags)
  FAIL(at_path("open", p), EMFILE, -1)
  return REAL(openat)(at, p, flags, mode);
}
void *mmap(void *w, size_t n, int p, int flags, int f, off_t o) {
  FAIL(f >= 0 && at_file("mmap", f), ENOMEM, MAP_FAILED)
  return REAL(mmap)(w, n, p, flags, f, o);
}
void *mmap64(void *w, size_t n, int p, int flags, int f, off64_t o) {
  FAIL(f >= 0 && at_file("mmap", f), ENOMEM, MAP_FAILED)
  return REAL(mmap64)(w, n, p, flags, f, o);
}
int rename(const char *a, const char *b) {
  FAIL(at_path("rename", b), EIO, -1)
  return REAL(rename)(a, b);
}
int link(const char *a, const char *b) {
  FAIL(at_path("link", b), EIO, -1)
  return REAL(link)(a, b);
}
int linkat(int x, const char *a, int y, const char *b, int flags) {
  FAIL(at_path("link", b), EIO, -1)
  return REAL(linkat)(x, a, y, b, flags);
}
