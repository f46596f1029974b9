/* ONNX Runtime's plug-in execution provider: EPContext nodes run exported libraries.
 *
 * A node names a library beside its model, that library's digest, and the model that it was
 * compiled from. Whatever does not fit becomes an error of ONNX Runtime, or, where the session's
 * option `fallback` is 1, ONNX Runtime runs that model in the node's place. Models without such nodes
 * are those of `cached.c`. */

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
                         const OrtNode *outer, const char *attribute,
                         OrtStatus *(*open)(Node *, const OrtNode *, const char *)) {
  char *file = NULL, path[PATH_MAX];
  OrtStatus *told = text_of(context, attribute, &file);
  if (!told) told = path_beside(node->provider, graph, file, path, sizeof path);
  free(file);
  return told ? told : open(node, outer, path);
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
  told = opened(node, graph, context, outer, "ep_cache_context", open_library);
  if (!told || !p->may_fall_back) return told;
  failed = ort.Logger_LogMessage(p->logger, ORT_LOG_WARNING, ort.GetErrorMessage(told), "provider.c",
                                 __LINE__, __func__);
  if (failed) ort.ReleaseStatus(failed);
  ort.ReleaseStatus(told);
  return opened(node, graph, context, outer, "onnx_model_filename", open_original);
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
