/* ONNX Runtime's plug-in execution provider: EPContext nodes run exported libraries.
 *
 * A node names a library beside its model, that library's digest, and the model that it was
 * compiled from. Whatever does not fit becomes an error of ONNX Runtime, or, where the session's
 * option `fallback` is 1, ONNX Runtime runs that model in the node's place. Models without such nodes
 * are those of `cached.c`. */

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

/* Files ------------------------------------------------------------------------------------- */

static OrtStatus *path_beside(const Provider *p, const OrtGraph *graph, const char *file,
                              char *path, size_t most) {
  const char *model = NULL, *slash;
  TRY(ort.Graph_GetModelPath(graph, &model));
  if (!*file || *file == '/' || strstr(file, ".."))
    return error(ORT_INVALID_ARGUMENT,
                 "autotune: '%s' is no file beside the model; hint: export it again", file);
  slash = model ? strrchr(model, '/') : NULL;
  if (slash)
    snprintf(path, most, "%.*s/%s", (int)(slash - model), model, file);
  else
    snprintf(path, most, "%s/%s", model && *model ? "." : *p->folder ? p->folder : ".", file);
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
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || fstat(file, &status)) {
    if (file >= 0) close(file);
    return error(ORT_NO_SUCHFILE, "autotune: cannot read '%s': %s; hint: keep it beside the model",
                 path, strerror(errno));
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

static OrtStatus *find_library(const char *path, const char *name, const AutotuneLibrary **found) {
  const AutotuneLibrary *(*library)(void) = NULL;
  char symbol[256];
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened) return error(ORT_EP_FAIL, "autotune: cannot load '%s': %s", path, dlerror());
  snprintf(symbol, sizeof symbol, "%s_library", name);
  *(void **)&library = dlsym(opened, symbol);
  *found = library ? library() : NULL;
  if (*found && (*found)->version == AUTOTUNE_LIBRARY) return NULL;
  return error(ORT_EP_FAIL, "autotune: '%s' was exported by another version; hint: export it again",
               path);
}

static OrtStatus *open_library(Node *node, const char *path) {
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
  status = library->create(&options, &node->model);
  if (status) return error(ORT_EP_FAIL, "autotune: %s: %s", node->name, library->strerror(status));
  node->library = library;
  return NULL;
}

/* Calls ------------------------------------------------------------------------------------- */

enum { MOST_RANK = 32, MOST_WORDS = 1 << 14 };

/* The address of an input and, where calls decide it, its shape. */
static OrtStatus *take_input(const Node *node, OrtKernelContext *context, int n, int64_t *record) {
  const AutotuneTensor *tensor = &node->library->inputs[n];
  int64_t extents[MOST_RANK];
  const OrtValue *value = NULL;
  OrtTensorInfo *info;
  OrtStatus *told;
  void *data;
  size_t rank = 0;
  int type = 0;
  TRY(ort.KernelContext_GetInput(context, (size_t)node->given[n], &value));
  if (!value) return error(ORT_INVALID_ARGUMENT, "autotune: input '%s' is missing", tensor->name);
  TRY(ort.GetTensorTypeAndShape(value, &info));
  told = ort.GetTensorElementType(info, &type);
  if (!told) told = ort.GetDimensionsCount(info, &rank);
  if (!told && rank <= MOST_RANK) told = ort.GetDimensions(info, extents, rank);
  ort.ReleaseTensorTypeAndShapeInfo(info);
  if (told) return told;
  if (type != tensor->type || rank != (size_t)tensor->rank)
    return error(ORT_INVALID_ARGUMENT, "autotune: input '%s' has another type or rank than %s takes",
                 tensor->name, node->name);
  TRY(ort.GetTensorMutableData((OrtValue *)value, &data));
  record[tensor->word] = (int64_t)(intptr_t)data;
  for (size_t k = 0; k < rank; k++) {
    if (tensor->shape >= 0)
      record[tensor->shape + (int)k] = extents[k];
    else if (extents[k] != tensor->extents[k])
      return error(ORT_INVALID_ARGUMENT,
                   "autotune: dimension %zu of input '%s' is %lld, and %s takes %lld", k,
                   tensor->name, (long long)extents[k], node->name, (long long)tensor->extents[k]);
  }
  return NULL;
}

static OrtStatus *call(Node *node, OrtKernelContext *context) {
  const AutotuneLibrary *l = node->library;
  int64_t inputs[l->input_words + 1], outputs[l->n_outputs + 1], results[l->result_words + 1];
  int64_t unread = 0;
  int status = 0;
  inputs[0] = 0;
  for (int n = 0; n < l->n_inputs; n++) TRY(take_input(node, context, n, inputs));
  if (l->shapes) status = l->shapes(inputs, results);
  for (int n = 0; n < l->n_outputs && !status; n++) {
    const AutotuneTensor *tensor = &l->outputs[n];
    const int64_t *extents = tensor->shape >= 0 ? &results[tensor->shape] : tensor->extents;
    OrtValue *value;
    void *data = &unread;
    if (node->made[n] < 0)
      return error(ORT_EP_FAIL, "autotune: output '%s' of %s is not in the graph", tensor->name,
                   node->name);
    TRY(ort.KernelContext_GetOutput(context, (size_t)node->made[n], extents, (size_t)tensor->rank,
                                    &value));
    TRY(ort.GetTensorMutableData(value, &data));
    outputs[tensor->word] = (int64_t)(intptr_t)data;
  }
  if (!status) status = l->run(node->model, inputs, outputs);
  if (!status) return NULL;
  return error(ORT_INVALID_ARGUMENT, "autotune: %s: %s", node->name, l->strerror(status));
}

/* ONNX Runtime's own session of the model, where the library cannot run --------------------- */

static OrtStatus *copied(OrtKernelContext *context, int n, OrtValue *from) {
  int64_t extents[MOST_RANK];
  OrtTensorInfo *info;
  OrtStatus *told;
  OrtValue *to;
  void *source, *target;
  size_t rank, n_bytes;
  TRY(ort.GetTensorTypeAndShape(from, &info));
  told = ort.GetDimensionsCount(info, &rank);
  if (!told && rank <= MOST_RANK) told = ort.GetDimensions(info, extents, rank);
  ort.ReleaseTensorTypeAndShapeInfo(info);
  if (told) return told;
  TRY(ort.KernelContext_GetOutput(context, (size_t)n, extents, rank, &to));
  TRY(ort.GetTensorSizeInBytes(from, &n_bytes));
  TRY(ort.GetTensorMutableData(from, &source));
  TRY(ort.GetTensorMutableData(to, &target));
  memcpy(target, source, n_bytes);
  return NULL;
}

static OrtStatus *run_original(Node *node, OrtKernelContext *context) {
  const OrtValue *inputs[node->n_inputs + 1];
  OrtValue *outputs[node->n_outputs + 1];
  OrtStatus *told;
  for (size_t n = 0; n < node->n_inputs; n++)
    TRY(ort.KernelContext_GetInput(context, (size_t)node->given[n], &inputs[n]));
  memset(outputs, 0, sizeof outputs);
  told = ort.Run(node->session, NULL, node->names, inputs, node->n_inputs,
                 node->names + node->n_inputs, node->n_outputs, outputs);
  for (size_t n = 0; n < node->n_outputs; n++) {
    if (!told) told = copied(context, node->made[n], outputs[n]);
    if (outputs[n]) ort.ReleaseValue(outputs[n]);
  }
  return told;
}

static OrtStatus *open_original(Node *node, const char *path) {
  OrtSessionOptions *options = NULL;
  OrtStatus *told;
  OrtEnv *env;
  if (node->n_names != node->n_inputs + node->n_outputs)
    return error(ORT_INVALID_ARGUMENT, "autotune: the node names %zu inputs and outputs of %zu",
                 node->n_names, node->n_inputs + node->n_outputs);
  TRY(ort.CreateEnv(ORT_LOG_WARNING, "autotune", &env));
  told = ort.CreateSessionOptions(&options);
  if (!told && node->provider->threads)
    told = ort.SetIntraOpNumThreads(options, node->provider->threads);
  if (!told) told = ort.CreateSession(env, path, options, &node->session);
  if (options) ort.ReleaseSessionOptions(options);
  ort.ReleaseEnv(env);
  return told;
}

/* What ONNX Runtime calls ------------------------------------------------------------------- */

static OrtStatus *create_state(OrtCompute *compute, void *context, void **state) {
  (void)context;
  *state = compute;
  return NULL;
}

static void release_state(OrtCompute *compute, void *state) { (void)compute, (void)state; }

static OrtStatus *compute_node(OrtCompute *compute, void *state, OrtKernelContext *context) {
  Node *node = (Node *)compute;
  (void)state;
  return node->library ? call(node, context) : run_original(node, context);
}

static void release_node(Node *node) {
  if (node->library && node->model) node->library->destroy(node->model);
  if (node->session) ort.ReleaseSession(node->session);
  free(node->name);
  free(node->notes);
  free(node->names);
  free(node->given);
  free(node->made);
  free(node);
}

/* Lines of the notes become texts: the first is the digest, names follow. */
static OrtStatus *read_notes(Node *node, const OrtNode *context) {
  size_t n = 1;
  TRY(text_of(context, "partition_name", &node->name));
  TRY(text_of(context, "notes", &node->notes));
  for (const char *c = node->notes; *c; c++) n += *c == '\n';
  node->names = calloc(n, sizeof *node->names);
  if (!node->names) return error(ORT_EP_FAIL, "autotune: no memory");
  for (char *c = node->notes; (c = strchr(c, '\n'));) {
    *c++ = 0;
    node->names[node->n_names++] = c;
  }
  return NULL;
}

/* Open what an attribute names, beside the model. */
static OrtStatus *opened(Node *node, const OrtGraph *graph, const OrtNode *context,
                         const char *attribute, OrtStatus *(*open)(Node *, const char *)) {
  char *file = NULL, path[PATH_MAX];
  OrtStatus *told = text_of(context, attribute, &file);
  if (!told) told = path_beside(node->provider, graph, file, path, sizeof path);
  free(file);
  return told ? told : open(node, path);
}

static OrtStatus *claim_whole(Provider *, const OrtGraph *, const OrtNode **, size_t, OrtSupport *);
static OrtStatus *compile_whole(Node *, const OrtNode *outer);

static OrtStatus *compile_node(Node *node, const OrtGraph *graph, const OrtNode *outer) {
  const Provider *p = node->provider;
  const OrtNode *context = NULL;
  OrtStatus *told, *failed;
  size_t n = 0;
  if (p->model) return compile_whole(node, outer);
  TRY(ort.Graph_GetNumNodes(graph, &n));
  if (n == 1) TRY(ort.Graph_GetNodes(graph, &context, 1));
  if (!context) return error(ORT_EP_FAIL, "autotune: %zu nodes where one is expected", n);
  TRY(joined_context(context, outer, 1, &node->given, &node->n_inputs));
  TRY(joined_context(context, outer, 0, &node->made, &node->n_outputs));
  TRY(read_notes(node, context));
  told = opened(node, graph, context, "ep_cache_context", open_library);
  if (!told || !p->may_fall_back) return told;
  failed = ort.Logger_LogMessage(p->logger, ORT_LOG_WARNING, ort.GetErrorMessage(told), "provider.c",
                                 __LINE__, __func__);
  if (failed) ort.ReleaseStatus(failed);
  ort.ReleaseStatus(told);
  return opened(node, graph, context, "onnx_model_filename", open_original);
}

static void release_nodes(OrtEp *ep, OrtCompute **nodes, size_t n) {
  (void)ep;
  for (size_t k = 0; k < n; k++)
    if (nodes[k]) release_node((Node *)nodes[k]);
}

static OrtStatus *compile(OrtEp *ep, const OrtGraph **graphs, const OrtNode **outer, size_t n,
                          OrtCompute **made, OrtNode **contexts) {
  OrtStatus *told = NULL;
  (void)contexts;
  memset(made, 0, n * sizeof *made);
  for (size_t k = 0; k < n && !told; k++) {
    Node *node = calloc(1, sizeof *node);
    if (!node) {
      told = error(ORT_EP_FAIL, "autotune: no memory");
      break;
    }
    node->base = (OrtCompute){ORT_VERSION, create_state, compute_node, release_state};
    node->provider = (const Provider *)ep;
    made[k] = &node->base;
    told = compile_node(node, graphs[k], outer[k]);
  }
  if (told) {
    release_nodes(ep, made, n);
    memset(made, 0, n * sizeof *made);
  }
  return told;
}

static OrtStatus *capability(OrtEp *ep, const OrtGraph *graph, OrtSupport *support) {
  const OrtFusion fusion = {ORT_VERSION, false};
  const OrtNode **nodes;
  OrtStatus *told;
  Provider *p = (Provider *)ep;
  size_t n = 0, n_ours = 0;
  TRY(ort.Graph_GetNumNodes(graph, &n));
  nodes = calloc(n + 1, sizeof *nodes);
  if (!nodes) return error(ORT_EP_FAIL, "autotune: no memory");
  told = ort.Graph_GetNodes(graph, nodes, n);
  for (size_t k = 0; k < n && !told; k++) {
    int ours = 0;
    told = is_ours(nodes[k], &ours);
    if (ours) told = providers.AddNodesToFuse(support, &nodes[k], 1, &fusion);
    n_ours += (size_t)ours;
  }
  if (!told && !n_ours && *p->cache) told = claim_whole(p, graph, nodes, n, support);
  free(nodes);
  return told;
}

static const char *name_of_ep(const OrtEp *ep) { return (void)ep, PROVIDER; }
static const char *name_of(const OrtFactory *factory) { return (void)factory, PROVIDER; }
static const char *vendor(const OrtFactory *factory) { return (void)factory, "autotune"; }
static uint32_t vendor_id(const OrtFactory *factory) { return (void)factory, 0; }
static const char *version(const OrtFactory *factory) { return (void)factory, VERSION; }
static bool is_stream_aware(const OrtFactory *factory) { return (void)factory, false; }

static OrtStatus *transfer(OrtFactory *factory, void **found) {
  (void)factory;
  *found = NULL;
  return NULL;
}

static OrtStatus *devices(OrtFactory *factory, const OrtDevice *const *given, size_t n,
                          OrtEpDevice **made, size_t most, size_t *n_made) {
  *n_made = 0;
  for (size_t k = 0; k < n && *n_made < most; k++)
    if (ort.HardwareDevice_Type(given[k]) == ORT_DEVICE_CPU) {
      TRY(providers.CreateEpDevice(factory, given[k], NULL, NULL, &made[*n_made]));
      ++*n_made;
    }
  return NULL;
}

static OrtStatus *create_ep(OrtFactory *factory, const OrtDevice *const *given,
                            const OrtPairs *const *pairs, size_t n,
                            const OrtSessionOptions *options, const OrtLogger *logger,
                            OrtEp **made) {
  Provider *p = calloc(1, sizeof *p);
  OrtStatus *told;
  (void)factory, (void)given, (void)pairs, (void)n;
  if (!p) return error(ORT_EP_FAIL, "autotune: no memory");
  p->base.version = ORT_VERSION;
  p->base.name = name_of_ep;
  p->base.capability = capability;
  p->base.compile = compile;
  p->base.release = release_nodes;
  p->logger = logger;
  strcpy(p->command, "autotune compile");
  told = read_options(p, options);
  if (told) free(p);
  *made = told ? NULL : &p->base;
  return told;
}

static void release_ep(OrtFactory *factory, OrtEp *ep) {
  Provider *p = (Provider *)ep;
  (void)factory;
  if (p->model) p->library->destroy(p->model);
  free(p);
}

#define PUBLIC __attribute__((visibility("default")))

PUBLIC OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base,
                                    const OrtLogger *logger, OrtFactory **made, size_t most,
                                    size_t *n_made) {
  const void *const *api = base->get_api(ORT_VERSION), *const *of_providers;
  OrtFactory *factory;
  (void)name, (void)logger;
  *n_made = 0;
  if (!api || !most) return NULL; /* a release before 1.23: it finds no provider */
#define TAKE(place, result, member, arguments) *(const void **)&ort.member = api[place];
  ORT_API(TAKE)
#undef TAKE
  of_providers = ort.GetEpApi();
#define TAKE(place, result, member, arguments) *(const void **)&providers.member = of_providers[place];
  ORT_EP_API(TAKE)
#undef TAKE
  factory = calloc(1, sizeof *factory);
  if (!factory) return error(ORT_EP_FAIL, "autotune: no memory");
  factory->version = ORT_VERSION;
  factory->name = name_of;
  factory->vendor = vendor;
  factory->devices = devices;
  factory->create = create_ep;
  factory->release = release_ep;
  factory->vendor_id = vendor_id;
  factory->version_text = version;
  factory->transfer = transfer;
  factory->is_stream_aware = is_stream_aware;
  made[0] = factory;
  *n_made = 1;
  return NULL;
}

PUBLIC OrtStatus *ReleaseEpFactory(OrtFactory *factory) {
  free(factory);
  return NULL;
}
