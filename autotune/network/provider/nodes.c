/* Options of sessions, nodes of graphs, and the libraries that they name. */

#define PROVIDER "AutotuneExecutionProvider"

static Ort ort;
static OrtProviders providers;

#define TRY(call)                    \
  do {                               \
    OrtStatus *told = (call);        \
    if (told) return told;           \
  } while (0)

static OrtStatus *error(int code, const char *format, ...) {
  char text[1024];
  va_list given;
  va_start(given, format);
  vsnprintf(text, sizeof text, format, given);
  va_end(given);
  return ort.CreateStatus(code, text);
}

/* Options ----------------------------------------------------------------------------------- */

typedef struct {
  OrtEp base;
  const OrtLogger *logger;
  int threads, callers, may_fall_back;
  char folder[PATH_MAX]; /* of models that come from memory; else empty */
  char cache[PATH_MAX], command[1024];
  const AutotuneLibrary *library; /* of the whole graph, and its model until a node has it */
  void *model;
} Provider;

static OrtStatus *number(const char *key, const char *text, int *found) {
  char *end;
  long value = strtol(text, &end, 10);
  if (!*text || *end || value < 0 || value > 4096)
    return error(ORT_INVALID_ARGUMENT, "autotune: option '%s' is '%s'; hint: give a number", key,
                 text);
  *found = (int)value;
  return NULL;
}

static OrtStatus *text(const char *key, const char *value, char *found, size_t most) {
  if (*value && strlen(value) < most) {
    strcpy(found, value);
    return NULL;
  }
  return error(ORT_INVALID_ARGUMENT, "autotune: option '%s' is empty or too long", key);
}

static OrtStatus *option(Provider *p, const char *key, const char *value) {
  static const char prefix[] = "ep." PROVIDER ".";
  if (!strcmp(key, "ep.context_file_path")) {
    char *slash;
    snprintf(p->folder, sizeof p->folder, "%s", value);
    slash = strrchr(p->folder, '/');
    snprintf(slash ? slash : p->folder, 3, slash ? "" : ".");
  }
  if (strncasecmp(key, prefix, sizeof prefix - 1)) return NULL;
  key += sizeof prefix - 1;
  if (!strcmp(key, "threads")) return number(key, value, &p->threads);
  if (!strcmp(key, "callers")) return number(key, value, &p->callers);
  if (!strcmp(key, "fallback")) return number(key, value, &p->may_fall_back);
  if (!strcmp(key, "cache")) return text(key, value, p->cache, PATH_MAX - 64);
  if (!strcmp(key, "command")) return text(key, value, p->command, sizeof p->command);
  return error(ORT_INVALID_ARGUMENT,
               "autotune: there is no option '%s'; hint: threads, callers, fallback, cache, command",
               key);
}

static OrtStatus *read_options(Provider *p, const OrtSessionOptions *options) {
  const char *const *keys, *const *values;
  OrtStatus *told = NULL;
  OrtPairs *pairs;
  size_t n;
  TRY(ort.GetSessionOptionsConfigEntries(options, &pairs));
  ort.GetKeyValuePairs(pairs, &keys, &values, &n);
  for (size_t k = 0; k < n && !told; k++) told = option(p, keys[k], values[k]);
  ort.ReleaseKeyValuePairs(pairs);
  return told;
}

/* Nodes ------------------------------------------------------------------------------------- */

typedef struct {
  OrtCompute base;
  const Provider *provider;
  char *name; /* of the library */
  const AutotuneLibrary *library;
  void *model;
  size_t n_inputs, n_outputs;
  int *given, *made; /* of each port of the library: its number among those of the fused node */
  char *notes;         /* lines: the digest of the library, then names of the model that */
  OrtSession *session; /* it was compiled from: of inputs, then of outputs */
  const char **names;
  size_t n_names;
} Node;

/* The text of an attribute, "" where it is not there: to be freed. */
static OrtStatus *text_of(const OrtNode *node, const char *name, char **found) {
  const OrtOpAttr *attribute = NULL;
  OrtStatus *told = ort.Node_GetAttributeByName(node, name, &attribute);
  size_t n = 0;
  if (!told && attribute) told = ort.ReadOpAttr(attribute, ORT_ATTRIBUTE_STRING, NULL, 0, &n);
  if (told) ort.ReleaseStatus(told); /* it is not there, or: so long it is */
  *found = calloc(n + 1, 1);
  if (!*found) return error(ORT_EP_FAIL, "autotune: no memory");
  if (n) TRY(ort.ReadOpAttr(attribute, ORT_ATTRIBUTE_STRING, *found, n, &n));
  return NULL;
}

static OrtStatus *is_ours(const OrtNode *node, int *ours) {
  const char *kind, *domain;
  OrtStatus *told;
  char *source = NULL;
  TRY(ort.Node_GetOperatorType(node, &kind));
  TRY(ort.Node_GetDomain(node, &domain));
  *ours = 0;
  if (strcmp(kind, "EPContext") || strcmp(domain, "com.microsoft")) return NULL;
  told = text_of(node, "source", &source);
  *ours = !told && !strcmp(source, PROVIDER);
  free(source);
  return told;
}

static OrtStatus *names_of(const OrtNode *node, int is_input, size_t n, const char **names) {
  const OrtValueInfo **values = calloc(n + 1, sizeof *values);
  OrtStatus *told;
  if (!values) return error(ORT_EP_FAIL, "autotune: no memory");
  told = is_input ? ort.Node_GetInputs(node, values, n) : ort.Node_GetOutputs(node, values, n);
  for (size_t k = 0; k < n && !told; k++) {
    names[k] = ""; /* an optional one that is left out */
    if (values[k]) told = ort.GetValueInfoName(values[k], &names[k]);
  }
  free(values);
  return told;
}

/* For each of `n` names of ports, the number of the fused node's of that name. */
static OrtStatus *joined(const char **wanted, size_t n, const OrtNode *fused, int is_input,
                         int **found) {
  const char **names;
  OrtStatus *told;
  size_t of;
  TRY((is_input ? ort.Node_GetNumInputs : ort.Node_GetNumOutputs)(fused, &of));
  names = calloc(of + 1, sizeof *names);
  *found = calloc(n + 1, sizeof **found);
  if (!names || !*found) return error(ORT_EP_FAIL, "autotune: no memory");
  told = names_of(fused, is_input, of, names);
  for (size_t k = 0; k < n && !told; k++) {
    size_t at = 0;
    while (at < of && strcmp(wanted[k], names[at])) at++;
    (*found)[k] = at < of ? (int)at : -1; /* an output that nothing reads */
    if (at == of && is_input)
      told = error(ORT_INVALID_ARGUMENT, "autotune: the node has no input '%s'", wanted[k]);
  }
  free(names);
  return told;
}

/* The same for the ports of an EPContext node. */
static OrtStatus *joined_context(const OrtNode *context, const OrtNode *fused, int is_input,
                                 int **found, size_t *n_found) {
  const char **names;
  OrtStatus *told;
  TRY((is_input ? ort.Node_GetNumInputs : ort.Node_GetNumOutputs)(context, n_found));
  names = calloc(*n_found + 1, sizeof *names);
  if (!names) return error(ORT_EP_FAIL, "autotune: no memory");
  told = names_of(context, is_input, *n_found, names);
  if (!told) told = joined(names, *n_found, fused, is_input, found);
  free(names);
  return told;
}

/* Arrays are of the types and ranks that the graph has, and read and written as the library's. */
static OrtStatus *require_ports(const AutotuneTensor *ports, const int *places, size_t n,
                                const OrtNode *fused, int is_input) {
  const OrtValueInfo **values;
  OrtStatus *told;
  size_t of = 0;
  TRY((is_input ? ort.Node_GetNumInputs : ort.Node_GetNumOutputs)(fused, &of));
  values = calloc(of + 1, sizeof *values);
  if (!values) return error(ORT_EP_FAIL, "autotune: no memory");
  told = (is_input ? ort.Node_GetInputs : ort.Node_GetOutputs)(fused, values, of);
  for (size_t k = 0; k < n && !told; k++) {
    const OrtTypeInfo *type = NULL;
    const OrtTensorInfo *info = NULL;
    size_t rank = 0; /* also where it is not known */
    int found = 0;
    if (places[k] < 0) continue;
    told = ort.GetValueInfoTypeInfo(values[places[k]], &type);
    if (!told && type) told = ort.CastTypeInfoToTensorInfo(type, &info);
    if (!told && info) told = ort.GetTensorElementType(info, &found);
    if (!told && info) told = ort.GetDimensionsCount(info, &rank);
    if (!told && (found != ports[k].type || (rank && rank != (size_t)ports[k].rank)))
      told = error(ORT_INVALID_ARGUMENT, "autotune: '%s' has another type or rank than the library "
                   "has; hint: export it again", ports[k].name);
  }
  free(values);
  return told;
}

/* Files ------------------------------------------------------------------------------------- */

static OrtStatus *path_beside(const Provider *p, const OrtGraph *graph, const char *file,
                              char *path, size_t most) {
  const char *model = NULL, *slash;
  int n;
  TRY(ort.Graph_GetModelPath(graph, &model));
  if (!*file || *file == '/' || strstr(file, ".."))
    return error(ORT_INVALID_ARGUMENT,
                 "autotune: '%s' is no file beside the model; hint: export it again", file);
  slash = model ? strrchr(model, '/') : NULL;
  if (slash)
    n = snprintf(path, most, "%.*s/%s", (int)(slash - model), model, file);
  else
    n = snprintf(path, most, "%s/%s", model && *model ? "." : *p->folder ? p->folder : ".", file);
  if (n < 0 || (size_t)n >= most)
    return error(ORT_INVALID_ARGUMENT, "autotune: the name of a file of the node is too long");
  return NULL;
}

/* As `digests.py` has it: pages of words with a constant for each place, in their order. */
static uint64_t digest_of(const unsigned char *data, size_t n) {
  uint64_t found = 0;
  for (size_t page = 0; page < n; page += PAGE) {
    size_t left = n - page < PAGE ? n - page : PAGE;
    uint64_t words[PAGE / 8] = {0}, value = 0;
    memcpy(words, data + page, left);
    for (size_t k = 0; k < PAGE / 8; k++) value += (words[k] ^ words[k] >> SHIFT) * factors[k];
    found = found * factors[0] + value;
  }
  return found;
}

static OrtStatus *require_digest(const char *path, const char *wanted) {
  struct stat status;
  char found[64];
  void *data;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no pipe is waited for */
  if (file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode)) {
    const char *why = file < 0 ? strerror(errno) : "it is no regular file";
    if (file >= 0) close(file);
    return error(ORT_NO_SUCHFILE, "autotune: cannot read '%s': %s; hint: keep it beside the model",
                 path, why);
  }
  data = status.st_size
             ? mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  close(file);
  snprintf(found, sizeof found, "%lld:%016llx", (long long)status.st_size,
           data == MAP_FAILED ? 0ull
                              : (unsigned long long)digest_of(data, (size_t)status.st_size));
  if (data != MAP_FAILED) munmap(data, (size_t)status.st_size);
  if (!strcmp(found, wanted)) return NULL;
  return error(ORT_INVALID_ARGUMENT,
               "autotune: '%s' is damaged, or is not that of the model; hint: export it again",
               path);
}

/* Libraries --------------------------------------------------------------------------------- */

/* Whether a file has all bytes of its segments: the loader maps what is not there, and a read of it
 * ends the process. */
static int is_whole(const char *path) {
  struct stat status;
  ElfW(Ehdr) head;
  ElfW(Phdr) part;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  int whole = file >= 0 && !fstat(file, &status) &&
              pread(file, &head, sizeof head, 0) == (ssize_t)sizeof head &&
              head.e_phentsize == sizeof part;
  for (int n = 0; whole && n < head.e_phnum; n++)
    whole = pread(file, &part, sizeof part, (off_t)(head.e_phoff + (size_t)n * sizeof part)) ==
                (ssize_t)sizeof part &&
            (part.p_type != PT_LOAD || (part.p_offset <= (uint64_t)status.st_size &&
                                        part.p_filesz <= (uint64_t)status.st_size - part.p_offset));
  if (file >= 0) close(file);
  return whole;
}

static OrtStatus *find_library(const char *path, const char *name, const AutotuneLibrary **found) {
  const AutotuneLibrary *(*library)(void) = NULL;
  char symbol[256];
  void *opened;
  if (!is_whole(path))
    return error(ORT_EP_FAIL, "autotune: '%s' ends too early; hint: export it again", path);
  opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened) return error(ORT_EP_FAIL, "autotune: cannot load '%s': %s", path, dlerror());
  snprintf(symbol, sizeof symbol, "%s_library", name);
  *(void **)&library = dlsym(opened, symbol);
  *found = library ? library() : NULL;
  if (*found && (*found)->version == AUTOTUNE_LIBRARY) return NULL;
  return error(ORT_EP_FAIL, "autotune: '%s' was exported by another version; hint: export it again",
               path);
}

static OrtStatus *open_library(Node *node, const OrtNode *outer, const char *path) {
  AutotuneOptions options = {node->provider->threads, node->provider->callers, 0, NULL};
  const AutotuneLibrary *library;
  int status;
  TRY(require_digest(path, node->notes));
  TRY(find_library(path, node->name, &library));
  if ((size_t)library->n_inputs != node->n_inputs || (size_t)library->n_outputs != node->n_outputs)
    return error(ORT_INVALID_ARGUMENT,
                 "autotune: %s takes %d inputs and gives %d outputs, the node %zu and %zu; hint: "
                 "export it again",
                 node->name, library->n_inputs, library->n_outputs, node->n_inputs,
                 node->n_outputs);
  TRY(require_ports(library->inputs, node->given, node->n_inputs, outer, 1));
  TRY(require_ports(library->outputs, node->made, node->n_outputs, outer, 0));
  status = library->create(&options, &node->model);
  if (status) return error(ORT_EP_FAIL, "autotune: %s: %s", node->name, library->strerror(status));
  node->library = library;
  return NULL;
}
