/* What a network asks of Linux: processors, the quota of its control groups, constants in a file. */

static int64_t usable_cpus(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static size_t content(const char *path, char *text, size_t room) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = file < 0 ? -1 : read(file, text, room - 1);
  if (file >= 0) close(file);
  text[n > 0 ? n : 0] = 0;
  return n > 0 ? (size_t)n : 0;
}

/* Cores that this process may use: CPUs of which no usable one of the same core comes before. */
static int64_t usable_cores(void) {
  cpu_set_t set;
  int64_t n = 0;
  if (sched_getaffinity(0, sizeof set, &set)) return 1;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    char path[96], text[256], *at = text;
    int is_first = CPU_ISSET(cpu, &set) != 0;
    if (!is_first) continue;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    content(path, text, sizeof text);
    while (*at >= '0' && *at <= '9') { /* "0,4" or "0-1" */
      long low = strtol(at, &at, 10), high = *at == '-' ? strtol(at + 1, &at, 10) : low;
      for (; low <= high && low < cpu; low++) is_first &= !CPU_ISSET((size_t)low, &set);
      if (*at == ',') at++;
    }
    n += is_first;
  }
  return n > 0 ? n : 1;
}

/* Processor seconds per second that the group at `path` and those around it leave; 0: no limit. */
static double quota_below(const char *mount, const char *path, int is_first_version) {
  char file[512], text[64], inner[256];
  double least = 0;
  snprintf(inner, sizeof inner, "%s", path);
  for (;;) {
    double quota = 0, period = 0;
    char *end = strrchr(inner, '/');
    if (is_first_version) {
      snprintf(file, sizeof file, "%s%s/cpu.cfs_quota_us", mount, inner);
      if (content(file, text, sizeof text)) quota = strtod(text, NULL);
      snprintf(file, sizeof file, "%s%s/cpu.cfs_period_us", mount, inner);
      if (content(file, text, sizeof text)) period = strtod(text, NULL);
    } else {
      char *rest = text;
      snprintf(file, sizeof file, "%s%s/cpu.max", mount, inner);
      if (content(file, text, sizeof text)) {
        quota = strtod(text, &rest);
        period = strtod(rest, NULL);
      }
    }
    if (quota > 0 && period > 0 && (least == 0 || quota / period < least)) least = quota / period;
    if (!end) return least;
    *end = 0;
  }
}

static int64_t usable_threads(int64_t most) {
  char groups[4096], *line = groups;
  int64_t n = usable_cores();
  if (n > most) n = most;
  if (n == 1) return 1;
  content("/proc/self/cgroup", groups, sizeof groups);
  while (line && *line) {
    char *next = strchr(line, '\n'), *names = strchr(line, ':');
    char *path = names ? strchr(names + 1, ':') : NULL;
    double found = 0;
    if (next) *next++ = 0;
    if (path) {
      *path++ = 0;
      if (!names[1])
        found = quota_below("/sys/fs/cgroup", path, 0);
      else if (strstr(names, "cpu,") || !strcmp(names, ":cpu") || strstr(names, ",cpu"))
        found = quota_below("/sys/fs/cgroup/cpu", path, 1);
    }
    if (found > 0 && found < (double)n) n = found < 1 ? 1 : (int64_t)found;
    line = next;
  }
  return n;
}

#if SEPARATE_WEIGHTS
/* The constants of the file at `path`, else of the one beside this library. */
static int find_constants(const char *path, const char **constants, void **mapped) {
  const size_t n_bytes = WEIGHTS_HEADER + CONSTANTS_BYTES;
  char beside[PATH_MAX], *end;
  struct stat info;
  Dl_info here;
  int file, has_size;
  if (!path) {
    if (!dladdr(weights_digest, &here)) return S(NO_WEIGHTS);
    snprintf(beside, sizeof beside, "%s", here.dli_fname);
    end = strrchr(beside, '/');
    end = end ? end + 1 : beside;
    snprintf(end, (size_t)(beside + sizeof beside - end), "%s", WEIGHTS_NAME);
    path = beside;
  }
  file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return S(NO_WEIGHTS);
  has_size = !fstat(file, &info) && (size_t)info.st_size == n_bytes;
  *mapped = has_size ? mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (*mapped == MAP_FAILED) {
    *mapped = NULL;
    return S(NO_WEIGHTS);
  }
  *constants = (char *)*mapped + WEIGHTS_HEADER;
  if (memcmp(*mapped, weights_digest, sizeof weights_digest)) {
    munmap(*mapped, n_bytes);
    *mapped = NULL;
    return S(NO_WEIGHTS);
  }
  return S(OK);
}
#else
static int find_constants(const char *path, const char **constants, void **mapped) {
  (void)path;
  *mapped = NULL;
  *constants = embedded_constants;
  return S(OK);
}
#endif
