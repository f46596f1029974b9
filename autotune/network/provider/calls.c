/* Calls of nodes: of their libraries, or of ONNX Runtime's sessions in the place of these. */

enum { MOST_RANK = 32 };

static OrtStatus *shape_of(const OrtValue *value, int *type, int64_t *extents, size_t *rank) {
  OrtTensorInfo *info;
  OrtStatus *told;
  TRY(ort.GetTensorTypeAndShape(value, &info));
  told = ort.GetTensorElementType(info, type);
  if (!told) told = ort.GetDimensionsCount(info, rank);
  if (!told && *rank <= MOST_RANK) told = ort.GetDimensions(info, extents, *rank);
  ort.ReleaseTensorTypeAndShapeInfo(info);
  return told;
}

/* The address of an input and, where calls decide it, its shape. */
static OrtStatus *take_input(const Node *node, OrtKernelContext *context, int n, int64_t *record) {
  const AutotuneTensor *tensor = &node->library->inputs[n];
  int64_t extents[MOST_RANK];
  const OrtValue *value = NULL;
  void *data;
  size_t rank = 0;
  int type = 0;
  TRY(ort.KernelContext_GetInput(context, (size_t)node->given[n], &value));
  if (!value) return error(ORT_INVALID_ARGUMENT, "autotune: input '%s' is missing", tensor->name);
  TRY(shape_of(value, &type, extents, &rank));
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

enum { STRINGS = 8 };

static OrtStatus *copied(OrtKernelContext *context, int n, OrtValue *from) {
  int64_t extents[MOST_RANK], same[MOST_RANK];
  OrtValue *to = NULL;
  void *source, *target;
  size_t rank = 0, n_bytes;
  int type = 0, wanted = -1;
  if (n < 0) return NULL; /* nothing reads it */
  TRY(shape_of(from, &type, extents, &rank));
  if (rank <= MOST_RANK) TRY(ort.KernelContext_GetOutput(context, (size_t)n, extents, rank, &to));
  if (to) TRY(shape_of(to, &wanted, same, &rank));
  if (type != wanted || type == STRINGS)
    return error(ORT_INVALID_ARGUMENT, "autotune: output %d of the original model has another type "
                 "than the node; hint: export it again", n);
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

static OrtStatus *open_original(Node *node, const OrtNode *outer, const char *path) {
  OrtSessionOptions *options = NULL;
  OrtStatus *told;
  OrtEnv *env;
  (void)outer;
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
