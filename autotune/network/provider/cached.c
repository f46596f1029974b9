/* Models without contexts: a session with the option `cache`, a folder, takes what is compiled there
 * of the model's file. Where nothing is, ONNX Runtime's own providers run the model, and `autotune`
 * begins in the background, one model at a time; the next session finds what it made.
 *
 *   KEY/        libmodel.so, model.digest …   KEY.log   what the commands said
 *   KEY.failed  they failed: not tried again  lock      held by the process that compiles */

static OrtStatus *say(const Provider *p, int level, const char *format, ...) {
  char text[PATH_MAX + 512];
  va_list given;
  va_start(given, format);
  vsnprintf(text, sizeof text, format, given);
  va_end(given);
  return ort.Logger_LogMessage(p->logger, level, text, "cached.c", __LINE__, __func__);
}

/* The sizes and times of the files that hold a model's tensors, as its text names them. */
static uint64_t digest_of_others(const char *model, const unsigned char *data, size_t n) {
  static const unsigned char mark[] = "\x0a\x08location\x12";
  const unsigned char *end = data + n, *at = data;
  const char *slash = strrchr(model, '/');
  uint64_t found = 0;
  while ((at = memmem(at, (size_t)(end - at), mark, sizeof mark - 1))) {
    char path[PATH_MAX];
    struct stat status;
    size_t length = 0;
    at += sizeof mark - 1;
    for (int shift = 0; at < end && shift < 21; shift += 7) {
      length |= (size_t)(*at & 0x7f) << shift;
      if (!(*at++ & 0x80)) break;
    }
    if (length > (size_t)(end - at)) break;
    snprintf(path, sizeof path, "%.*s%.*s", slash ? (int)(slash - model + 1) : 0, model, (int)length,
             (const char *)at);
    memset(&status, 0, sizeof status);
    if (stat(path, &status)) continue;
    found = found * factors[0] + (uint64_t)status.st_size;
    found = found * factors[0] + (uint64_t)status.st_mtim.tv_sec;
    found = found * factors[0] + (uint64_t)status.st_mtim.tv_nsec;
  }
  return found;
}

/* The place of a model in the cache: by its bytes, the command, and the version; "": no file. */
static void place_of(const Provider *p, const char *model, char *place, size_t most) {
  struct stat status;
  uint64_t value;
  void *data;
  int file = open(model, O_RDONLY | O_CLOEXEC);
  *place = 0;
  if (file < 0) return;
  data = fstat(file, &status) || !status.st_size
             ? MAP_FAILED : mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (data == MAP_FAILED) return;
  value = digest_of(data, (size_t)status.st_size) * factors[1];
  value += digest_of_others(model, data, (size_t)status.st_size) * factors[2];
  value += digest_of((const unsigned char *)p->command, strlen(p->command)) * factors[3];
  value += digest_of((const unsigned char *)VERSION, strlen(VERSION)) * factors[4];
  munmap(data, (size_t)status.st_size);
  snprintf(place, most, "%s/%016llx", p->cache, (unsigned long long)value);
}

static OrtStatus *open_cached(Provider *p, const char *place) {
  AutotuneOptions options = {p->threads, p->callers, 0, NULL};
  char path[PATH_MAX + 32], digest[64] = "";
  const AutotuneLibrary *library;
  FILE *file;
  int status;
  snprintf(path, sizeof path, "%s/model.digest", place);
  file = fopen(path, "re");
  if (file && !fgets(digest, sizeof digest, file)) *digest = 0;
  if (file) fclose(file);
  digest[strcspn(digest, "\n")] = 0;
  snprintf(path, sizeof path, "%s/libmodel.so", place);
  TRY(require_digest(path, digest));
  TRY(find_library(path, "model", &library));
  status = library->create(&options, &p->model);
  if (status) return error(ORT_EP_FAIL, "autotune: %s: %s", path, library->strerror(status));
  p->library = library;
  return NULL;
}

/* In the child: the commands, of which nothing of the host's is left open but the lock. */
static void run_commands(const Provider *p, const char *model, const char *place, int lock) {
  static const char script[] =
      "set -f; exec >\"$2.log\" 2>&1 </dev/null; rm -rf \"$2.part\" \"$2.atn\"\n"
      "if $3 \"$1\" -o \"$2.atn\" &&\n"
      "  ${3%% *} export \"$2.atn\" --onnx --name model -o \"$2.part\"\n"
      "then rm -rf \"$2\" && mv \"$2.part\" \"$2\" && rm -f \"$2.atn\"; else : >\"$2.failed\"; fi";
  char *const words[] = {"sh", "-c", (char *)script, "sh", (char *)model, (char *)place,
                         (char *)p->command, NULL};
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (lock != 3) dup2(lock, 3);
  fcntl(3, F_SETFD, 0);
  for (int n = 4; n < 4096; n++) close(n);
  nice(10);
  execv("/bin/sh", words);
  _exit(127);
}

static OrtStatus *begin(const Provider *p, const char *model, const char *place) {
  char path[PATH_MAX + 32];
  pid_t child;
  int lock;
  snprintf(path, sizeof path, "%s.failed", place);
  if (!access(path, F_OK))
    return say(p, ORT_LOG_WARNING, "autotune: '%s' could not be compiled: see '%s.log'; remove "
               "'%s' to try again", model, place, path);
  mkdir(p->cache, 0777);
  snprintf(path, sizeof path, "%s/lock", p->cache);
  lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock < 0)
    return say(p, ORT_LOG_WARNING, "autotune: cannot write '%s': %s", path, strerror(errno));
  if (flock(lock, LOCK_EX | LOCK_NB)) {
    close(lock);
    return say(p, ORT_LOG_INFO, "autotune: another model is being compiled");
  }
  child = fork();
  if (!child) { /* its child is nobody's, so the host has none to wait for */
    setsid();
    if (!fork()) run_commands(p, model, place, lock);
    _exit(0);
  }
  if (child > 0) waitpid(child, NULL, 0);
  close(lock);
  return say(p, ORT_LOG_INFO, "autotune: '%s' is being compiled in the background: '%s.log'", model,
             place);
}

/* Whether a library's input takes all shapes that the model's does. */
static OrtStatus *takes_all(const AutotuneTensor *own, const OrtValueInfo *input, int *found) {
  const OrtTypeInfo *type = NULL;
  const OrtTensorInfo *info = NULL;
  int64_t extents[MOST_RANK];
  size_t rank = 0;
  TRY(ort.GetValueInfoTypeInfo(input, &type));
  TRY(ort.CastTypeInfoToTensorInfo(type, &info));
  *found = 0;
  if (!info) return NULL;
  TRY(ort.GetDimensionsCount(info, &rank));
  if (rank != (size_t)own->rank || rank > MOST_RANK) return NULL;
  TRY(ort.GetDimensions(info, extents, rank));
  *found = 1;
  for (size_t k = 0; k < rank; k++)
    *found &= own->shape >= 0 || extents[k] == own->extents[k];
  return NULL;
}

static OrtStatus *inputs_fit(const AutotuneLibrary *l, const OrtGraph *graph, int *found) {
  const OrtValueInfo **inputs;
  OrtStatus *told;
  size_t n = 0;
  TRY(ort.Graph_GetNumInputs(graph, &n));
  inputs = calloc(n + 1, sizeof *inputs);
  if (!inputs) return error(ORT_EP_FAIL, "autotune: no memory");
  told = ort.Graph_GetInputs(graph, inputs, n);
  *found = 1;
  for (size_t k = 0; k < n && !told && *found; k++) {
    const char *name = "";
    told = ort.GetValueInfoName(inputs[k], &name);
    for (int m = 0; m < l->n_inputs && !told; m++)
      if (!strcmp(name, l->inputs[m].name)) told = takes_all(&l->inputs[m], inputs[k], found);
  }
  free(inputs);
  return told;
}

/* Whether nodes read all inputs of the library, and it gives all outputs of the graph. */
static OrtStatus *fits(const Provider *p, const OrtGraph *graph, const OrtNode **nodes, size_t n,
                       int *found) {
  const AutotuneLibrary *l = p->library;
  char *read = calloc((size_t)l->n_inputs + 1, 1);
  const OrtValueInfo **outputs = NULL;
  OrtStatus *told = read ? NULL : error(ORT_EP_FAIL, "autotune: no memory");
  size_t of = 0;
  *found = 1;
  for (size_t k = 0; k < n && !told; k++) {
    const char **names;
    told = ort.Node_GetNumInputs(nodes[k], &of);
    names = told ? NULL : calloc(of + 1, sizeof *names);
    if (names) told = names_of(nodes[k], 1, of, names);
    for (size_t j = 0; names && j < of && !told; j++)
      for (int m = 0; m < l->n_inputs; m++) read[m] |= !strcmp(names[j], l->inputs[m].name);
    free(names);
  }
  for (int m = 0; read && m < l->n_inputs; m++) *found &= read[m];
  if (!told) told = ort.Graph_GetNumOutputs(graph, &of);
  outputs = calloc(of + 1, sizeof *outputs);
  if (!told && outputs) told = ort.Graph_GetOutputs(graph, outputs, of);
  for (size_t k = 0; outputs && k < of && !told; k++) {
    const char *name = "";
    int given = 0;
    told = ort.GetValueInfoName(outputs[k], &name);
    for (int m = 0; m < l->n_outputs && !told; m++) given |= !strcmp(name, l->outputs[m].name);
    *found &= given;
  }
  *found &= outputs != NULL;
  free(outputs);
  free(read);
  return told;
}

/* Take the whole graph where its model is compiled, else begin with that. */
static OrtStatus *claim_whole(Provider *p, const OrtGraph *graph, const OrtNode **nodes, size_t n,
                              OrtSupport *support) {
  const OrtFusion fusion = {ORT_VERSION, true};
  const OrtNode *parent = NULL;
  const char *model = NULL;
  char place[PATH_MAX];
  OrtStatus *told;
  int is_so = 0;
  TRY(ort.Graph_GetParentNode(graph, &parent));
  TRY(ort.Graph_GetModelPath(graph, &model));
  if (parent || !n) return NULL;
  if (!model || !*model)
    return say(p, ORT_LOG_WARNING, "autotune: a model that is no file is not compiled");
  if (!p->library) {
    place_of(p, model, place, sizeof place);
    if (!*place) return say(p, ORT_LOG_WARNING, "autotune: cannot read '%s'", model);
    if (access(place, F_OK)) return begin(p, model, place);
    told = open_cached(p, place);
    if (told) {
      OrtStatus *failed = say(p, ORT_LOG_WARNING, "%s; ONNX Runtime runs '%s' as it is",
                              ort.GetErrorMessage(told), model);
      ort.ReleaseStatus(told);
      return failed;
    }
  }
  TRY(inputs_fit(p->library, graph, &is_so));
  if (!is_so)
    return say(p, ORT_LOG_WARNING, "autotune: '%s' takes other shapes than what was compiled; hint: "
               "name the most of its open dimensions in the command, as by --dim batch=..8", model);
  TRY(fits(p, graph, nodes, n, &is_so));
  if (is_so) return providers.AddNodesToFuse(support, nodes, n, &fusion);
  return say(p, ORT_LOG_WARNING, "autotune: '%s' has other inputs or outputs than what was compiled",
             model);
}

/* The node of the whole graph. */
static OrtStatus *compile_whole(Node *node, const OrtNode *outer) {
  Provider *p = (Provider *)(uintptr_t)node->provider;
  const AutotuneLibrary *l = p->library;
  const char **names = calloc((size_t)(l->n_inputs + l->n_outputs) + 1, sizeof *names);
  OrtStatus *told = names ? NULL : error(ORT_EP_FAIL, "autotune: no memory");
  node->n_inputs = (size_t)l->n_inputs;
  node->n_outputs = (size_t)l->n_outputs;
  for (int k = 0; names && k < l->n_inputs; k++) names[k] = l->inputs[k].name;
  for (int k = 0; names && k < l->n_outputs; k++) names[l->n_inputs + k] = l->outputs[k].name;
  if (!told) told = joined(names, node->n_inputs, outer, 1, &node->given);
  if (!told) told = joined(names + node->n_inputs, node->n_outputs, outer, 0, &node->made);
  if (!told) told = require_ports(l->outputs, node->made, node->n_outputs, outer, 0);
  free(names);
  node->name = strdup("model");
  node->library = l;
  node->model = p->model;
  p->model = NULL;
  return told;
}
