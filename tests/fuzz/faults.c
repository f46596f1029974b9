/* Preloaded into a command: the n-th call of one function fails, of files below a folder.
 *
 *   FAULT_FOLDER  absolute path        FAULT_CALL   write, fsync, open, read, mmap, rename, link,
 *   FAULT_NUMBER  from 1; 0: none                   malloc, clone
 *   FAULT_PLACE   if set, the first call from this place fails, whatever its number
 *   FAULT_PLACES  if set, a file that gets a line for each call: place, kind of file, frames
 *   FAULT_PACKAGE folder of the Python code whose innermost frames make a place
 *   FAULT_COUNT   file with two int64: calls so far, of all processes; whether a file was opened
 *   FAULT_LEAST   bytes of the memory that `malloc` counts
 *   FAULT_CALLER  if set, calls by the library of this name count, of any file, and no others
 *
 * `malloc` and `clone` (threads and processes) count from the first file of the folder on that is
 * opened, and where Python, NumPy or compiled code asks: LLVM and ONNX Runtime end the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FRAMES 4

static const char *folder, *call, *library, *package;
static int64_t number, least, *count;
static uint64_t wanted;
static int places = -1;
static __thread int is_inside;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("FAULT_COUNT"), *text = getenv("FAULT_NUMBER");
  const char *bytes = getenv("FAULT_LEAST");
  library = getenv("FAULT_CALLER");
  least = bytes ? atoll(bytes) : 0;
  folder = getenv("FAULT_FOLDER");
  call = getenv("FAULT_CALL");
  if (!file || !text || !folder || !call) return;
  int handle = REAL(open)(file, O_RDWR);
  if (handle < 0) return;
  void *at = REAL(mmap)(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
  close(handle);
  if (at == MAP_FAILED) return;
  number = atoll(text);
  package = getenv("FAULT_PACKAGE");
  if (getenv("FAULT_PLACE")) wanted = strtoull(getenv("FAULT_PLACE"), NULL, 16);
  if (getenv("FAULT_PLACES"))
    places = REAL(open)(getenv("FAULT_PLACES"), O_WRONLY | O_APPEND | O_CREAT, 0600);
  count = at;
}

static int begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

/* The file name of the code that calls, without its folder; empty for code in memory. */
static const char *object(void *caller) {
  Dl_info info;
  const char *name = dladdr(caller, &info) && info.dli_fname ? info.dli_fname : "", *end;
  return (end = strrchr(name, '/')) ? end + 1 : name;
}

/* Innermost frames of Python in the package, as `FILE", line N in FUNCTION`; "" without Python. */
static void frames(char *out, size_t size) {
  void *(*state)(void) = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
  void (*dump)(int, void *) = dlsym(RTLD_DEFAULT, "_Py_DumpTraceback");
  static __thread char text[1 << 14];
  void *thread = state ? state() : NULL;
  *out = 0;
  if (!thread || !dump || !package) return;
  int file = memfd_create("frames", MFD_CLOEXEC), n = 0;
  dump(file, thread);
  ssize_t end = REAL(pread64)(file, text, sizeof text - 1, 0);
  close(file);
  if (end < 0) return;
  text[end] = 0;
  for (char *rest = text, *line; n < FRAMES && (line = strtok_r(NULL, "\n", &rest));) {
    char *at = strstr(line, package);
    if (!at || strlen(out) + strlen(at) + 4 > size) continue;
    strcat(strcat(out, n++ ? " < " : ""), at + strlen(package));
  }
}

/* Where a call comes from: function, code that calls, kind of file, frames. */
static uint64_t place_of(const char *path, void *caller) {
  char line[2048], kind[64] = "", at[1600];
  const char *end = path ? strrchr(path, '.') : NULL;
  if (path) snprintf(kind, sizeof kind, "%s", end && !strchr(end, '/') ? end : "other");
  if (strchr(kind, '-')) *strchr(kind, '-') = 0; /* what follows is random */
  frames(at, sizeof at);
  int n = snprintf(line, sizeof line, "%s %s %s | %s\n", call, object(caller), kind, at);
  uint64_t hash = 14695981039346656037u;
  for (int i = 0; i < n; i++) hash = (hash ^ (unsigned char)line[i]) * 1099511628211u;
  if (places >= 0) dprintf(places, "%016lx %s", (unsigned long)hash, line);
  return hash;
}

static int fails(const char *path, void *caller) {
  if (is_inside) return 0;
  if (!wanted && places < 0) return __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) == number;
  int before = errno;
  is_inside = 1;
  uint64_t place = place_of(path, caller);
  is_inside = 0;
  errno = before;
  int64_t n = place == wanted || !wanted ? __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) : 0;
  return wanted && n == 1;
}

static int counts(const char *name, const char *path, void *caller) {
  int is_there = !strncmp(path, folder, strlen(folder));
  if (is_there) count[1] = 1;
  if (strcmp(name, call)) return 0;
  return (library ? !strcmp(object(caller), library) : is_there) && fails(path, caller);
}

static int at_path(const char *name, const char *path, void *caller) {
  char whole[4096];
  if (!count || !path) return 0;
  if (path[0] == '/') return counts(name, path, caller);
  if (!getcwd(whole, 2048) || strlen(path) > 2000) return 0;
  return counts(name, strcat(strcat(whole, "/"), path), caller);
}

static int at_file(const char *name, int handle, void *caller) {
  char link[64], path[4096];
  if (!count || strcmp(name, call)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return counts(name, path, caller);
}

static int at_code(const char *name, size_t n_bytes, void *caller) {
  if (!count || strcmp(name, call) || (int64_t)n_bytes < least) return 0;
  const char *by = object(caller);
  if (library) return !strcmp(by, library) && fails(NULL, caller);
  if (!count[1]) return 0;
  return (!*by || begins(by, "python") || begins(by, "libpython") || begins(by, "mmap.") ||
          begins(by, "_multiarray_umath") || begins(by, "_posixsubprocess")) && fails(NULL, caller);
}

#define CALLER __builtin_return_address(0)
#define FAIL(test, error, value) \
  if (test) { errno = error; return value; }

ssize_t write(int f, const void *d, size_t n) {
  FAIL(at_file("write", f, CALLER), ENOSPC, -1)
  return REAL(write)(f, d, n);
}
ssize_t pwrite64(int f, const void *d, size_t n, off64_t o) {
  FAIL(at_file("write", f, CALLER), ENOSPC, -1)
  return REAL(pwrite64)(f, d, n, o);
}
ssize_t writev(int f, const struct iovec *v, int n) {
  FAIL(at_file("write", f, CALLER), ENOSPC, -1)
  return REAL(writev)(f, v, n);
}
int fsync(int f) {
  FAIL(at_file("fsync", f, CALLER), EIO, -1)
  return REAL(fsync)(f);
}
int fdatasync(int f) {
  FAIL(at_file("fsync", f, CALLER), EIO, -1)
  return REAL(fdatasync)(f);
}
ssize_t read(int f, void *d, size_t n) {
  FAIL(at_file("read", f, CALLER), EIO, -1)
  return REAL(read)(f, d, n);
}
ssize_t pread64(int f, void *d, size_t n, off64_t o) {
  FAIL(at_file("read", f, CALLER), EIO, -1)
  return REAL(pread64)(f, d, n, o);
}
#define MODE(flags) \
  mode_t mode = 0; \
  if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }
int open(const char *p, int flags, ...) {
  MODE(flags)
  FAIL(at_path("open", p, CALLER), EMFILE, -1)
  return REAL(open)(p, flags, mode);
}
int open64(const char *p, int flags, ...) {
  MODE(flags)
  FAIL(at_path("open", p, CALLER), EMFILE, -1)
  return REAL(open64)(p, flags, mode);
}
int openat(int at, const char *p, int flags, ...) {
  MODE(flags)
  FAIL(at_path("open", p, CALLER), EMFILE, -1)
  return REAL(openat)(at, p, flags, mode);
}
#define MAPS(f, n) \
  (f >= 0 && !library ? at_file("mmap", f, CALLER) : at_code(library ? "mmap" : "malloc", n, CALLER))
void *mmap(void *w, size_t n, int p, int flags, int f, off_t o) {
  FAIL(MAPS(f, n), ENOMEM, MAP_FAILED)
  return REAL(mmap)(w, n, p, flags, f, o);
}
void *mmap64(void *w, size_t n, int p, int flags, int f, off64_t o) {
  FAIL(MAPS(f, n), ENOMEM, MAP_FAILED)
  return REAL(mmap64)(w, n, p, flags, f, o);
}
int rename(const char *a, const char *b) {
  FAIL(at_path("rename", b, CALLER), EIO, -1)
  return REAL(rename)(a, b);
}
int link(const char *a, const char *b) {
  FAIL(at_path("link", b, CALLER), EIO, -1)
  return REAL(link)(a, b);
}
int linkat(int x, const char *a, int y, const char *b, int flags) {
  FAIL(at_path("link", b, CALLER), EIO, -1)
  return REAL(linkat)(x, a, y, b, flags);
}

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t n) {
  FAIL(at_code("malloc", n, CALLER), ENOMEM, NULL)
  return __libc_malloc(n);
}
void *calloc(size_t n, size_t each) {
  FAIL(at_code("malloc", n * each, CALLER), ENOMEM, NULL)
  return __libc_calloc(n, each);
}
void *realloc(void *p, size_t n) {
  FAIL(at_code("malloc", n, CALLER), ENOMEM, NULL)
  return __libc_realloc(p, n);
}
void *aligned_alloc(size_t to, size_t n) {
  FAIL(at_code("malloc", n, CALLER), ENOMEM, NULL)
  return __libc_memalign(to, n);
}
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
  if (at_code("clone", INT64_MAX, CALLER)) return EAGAIN;
  return REAL(pthread_create)(t, a, f, x);
}
pid_t fork(void) {
  FAIL(at_code("clone", INT64_MAX, CALLER), EAGAIN, -1)
  return REAL(fork)();
}
pid_t vfork(void) { /* the child returns from here: as a fork it has a stack of its own */
  FAIL(at_code("clone", INT64_MAX, CALLER), EAGAIN, -1)
  return REAL(fork)();
}
int posix_spawn(pid_t *p, const char *f, const posix_spawn_file_actions_t *a,
                const posix_spawnattr_t *r, char *const *v, char *const *e) {
  if (at_code("clone", INT64_MAX, CALLER)) return EAGAIN;
  return REAL(posix_spawn)(p, f, a, r, v, e);
}
