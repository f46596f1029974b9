/* The measuring program: memory, calls and facts of a machine, for whoever writes to its stdin.
 *
 * A request is eight words, and bytes where it says so; an answer is one word, and bytes. Words are
 * 64 bits, little endian. It ends with its input, or by a signal of the code that it calls. What is
 * above this line is generated: the numbers of requests, and of large pages.
 *
 *   1 FACTS                          -> n, n bytes: lines `name value`
 *   2 MAP n                          -> address of n zero bytes in whole pages, 0 without room
 *   3 UNMAP address n                   (no answer)
 *   4 WRITE address n, n bytes          (no answer)
 *   5 READ address n                 -> n, n bytes
 *   6 PROTECT address n access       -> 0, or an error number; access: 1 read, 2 write, 4 execute
 *   7 CALL f seconds a b c d         -> f(a, b, c, d); SIGALRM after that time
 *   8 SYMBOL n, n bytes              -> address of a function of the C library, 0 without it
 */

#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  const char *name;
  void (*function)(void);
} Symbol;

#define S(name) {#name, (void (*)(void))name}
typedef double (*D1)(double);
typedef double (*D2)(double, double);
typedef float (*F1)(float);
typedef float (*F2)(float, float);
#define D(name) {#name, (void (*)(void))(D1)name}, {#name "f", (void (*)(void))(F1)name##f}
#define E(name) {#name, (void (*)(void))(D2)name}, {#name "f", (void (*)(void))(F2)name##f}

static const Symbol symbols[] = {
    S(clock_gettime), S(memcpy), S(memmove), S(memset), S(memcmp), S(pthread_create),
    S(pthread_detach), S(pthread_sigmask), S(sched_getaffinity), S(sched_setaffinity),
    S(sched_yield), S(syscall), D(exp), D(exp2), D(expm1), D(log), D(log2), D(log1p), D(log10),
    D(erf), D(sin), D(cos), D(tan), D(asin), D(acos), D(atan), D(sinh), D(cosh), D(tanh), D(asinh),
    D(acosh), D(atanh), D(sqrt), D(floor), D(ceil), D(trunc), D(round), D(rint), D(nearbyint),
    D(fabs), E(pow), E(fmod), E(atan2), E(fmin), E(fmax)};

static void get(void *to, size_t n) {
  for (char *at = to; n;) {
    ssize_t done = read(0, at, n);
    if (done <= 0 && errno != EINTR) _exit(0);
    if (done > 0) at += done, n -= (size_t)done;
  }
}

static void put(const void *from, size_t n) {
  for (const char *at = from; n;) {
    ssize_t done = write(1, at, n);
    if (done < 0 && errno != EINTR) _exit(1);
    if (done > 0) at += done, n -= (size_t)done;
  }
}

static void answer(uint64_t word) { put(&word, sizeof word); }

static uint64_t map(size_t n) {
  size_t more = n >= LARGE_FROM ? LARGE_PAGE : 0;
  char *found = mmap(NULL, n + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *start;
  if (found == MAP_FAILED) return 0;
  start = more ? found + (-(uintptr_t)found & (more - 1)) : found;
  if (start > found) munmap(found, (size_t)(start - found));
  if (more && start < found + more) munmap(start + ((n + 4095) & ~(size_t)4095), (size_t)(found + more - start));
  if (more) madvise(start, n, MADV_HUGEPAGE);
  return (uint64_t)(uintptr_t)start;
}

static uint64_t protect(char *at, size_t n, uint64_t access) {
  int flags = (access & 1 ? PROT_READ : 0) | (access & 2 ? PROT_WRITE : 0) | (access & 4 ? PROT_EXEC : 0);
  if (mprotect(at, n, flags)) return (uint64_t)errno;
  if (access & 4) __builtin___clear_cache(at, at + n);
  return 0;
}

static size_t line(char *text, size_t at, size_t room, const char *path) {
  FILE *file = fopen(path, "r");
  char value[256] = "";
  if (!file) return at;
  if (!fgets(value, sizeof value, file)) value[0] = 0;
  fclose(file);
  value[strcspn(value, "\n")] = 0;
  return at + (size_t)snprintf(text + at, room - at, "%s %s\n", strrchr(path, '/') + 1, value);
}

/* CPUs that it may run on, and the caches of the first. */
static void facts(void) {
  static char text[1 << 16];
  static const char *const files[] = {"level", "type", "size"};
  cpu_set_t set;
  size_t n = 0, room = sizeof text;
  if (!sched_getaffinity(0, sizeof set, &set))
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
      if (CPU_ISSET(cpu, &set)) n += (size_t)snprintf(text + n, room - n, "cpu %d\n", cpu);
  for (int k = 0; k < 8; k++)
    for (int f = 0; f < 3; f++) {
      char path[96];
      snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", k, files[f]);
      n = line(text, n, room, path);
    }
  answer(n);
  put(text, n);
}

static uint64_t symbol(const char *name) {
  for (size_t n = 0; n < sizeof symbols / sizeof *symbols; n++)
    if (!strcmp(symbols[n].name, name)) return (uint64_t)(uintptr_t)symbols[n].function;
  return 0;
}

int main(int count, char **arguments) {
  if (count > 1 && !strcmp(arguments[1], "unlink")) unlink(arguments[0]);
  put("autotune", 8); /* what a shell has greeted with comes before */
  for (;;) {
    uint64_t r[8];
    char name[256] = "";
    get(r, sizeof r);
    switch (r[0]) {
      case FACTS: facts(); break;
      case MAP: answer(map(r[1])); break;
      case UNMAP: munmap((void *)(uintptr_t)r[1], r[2]); break;
      case WRITE: get((void *)(uintptr_t)r[1], r[2]); break;
      case READ:
        answer(r[2]);
        put((void *)(uintptr_t)r[1], r[2]);
        break;
      case PROTECT: answer(protect((char *)(uintptr_t)r[1], r[2], r[3])); break;
      case CALL:
        alarm((unsigned)r[2]);
        answer(((uint64_t(*)(uint64_t, uint64_t, uint64_t, uint64_t))(uintptr_t)r[1])(r[3], r[4], r[5], r[6]));
        alarm(0);
        break;
      case SYMBOL:
        if (r[1] >= sizeof name) _exit(1);
        get(name, r[1]);
        answer(symbol(name));
        break;
      default: _exit(1);
    }
  }
}
