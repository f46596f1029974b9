/* The part of ONNX Runtime's C ABI that the provider uses (version 23, of release 1.23, on).
 *
 * Functions are known by their places in the tables that ONNX Runtime gives, which never change;
 * records that the provider fills have all members up to the last one that version 23 has. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORT_VERSION 23

typedef struct OrtStatus OrtStatus;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValue OrtValue;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtTensorInfo OrtTensorInfo;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtPairs OrtPairs;
typedef struct OrtDevice OrtDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtSupport OrtSupport;
typedef struct OrtLogger OrtLogger;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtAllocator OrtAllocator;

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NO_SUCHFILE = 3, ORT_EP_FAIL = 11 };
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_STRING = 5 };
enum { ORT_DEVICE_CPU = 0 };
enum { ORT_LOG_INFO = 1, ORT_LOG_WARNING = 2 };

typedef struct {
  const void *const *(*get_api)(uint32_t version);
  const char *(*get_version)(void);
} OrtApiBase;

/* X(place, result, name, arguments) of the table of ONNX Runtime. */
#define ORT_API(X)                                                                                \
  X(0, OrtStatus *, CreateStatus, (int code, const char *text))                                   \
  X(2, const char *, GetErrorMessage, (const OrtStatus *))                                        \
  X(3, OrtStatus *, CreateEnv, (int level, const char *name, OrtEnv **))                          \
  X(7, OrtStatus *, CreateSession,                                                                \
    (const OrtEnv *, const char *path, const OrtSessionOptions *, OrtSession **))                 \
  X(9, OrtStatus *, Run,                                                                          \
    (OrtSession *, const void *options, const char *const *names, const OrtValue *const *given,   \
     size_t n, const char *const *wanted, size_t n_wanted, OrtValue **made))                      \
  X(10, OrtStatus *, CreateSessionOptions, (OrtSessionOptions **))                                \
  X(24, OrtStatus *, SetIntraOpNumThreads, (OrtSessionOptions *, int n))                          \
  X(51, OrtStatus *, GetTensorMutableData, (OrtValue *, void **))                                 \
  X(55, OrtStatus *, CastTypeInfoToTensorInfo, (const OrtTypeInfo *, const OrtTensorInfo **))     \
  X(60, OrtStatus *, GetTensorElementType, (const OrtTensorInfo *, int *))                        \
  X(61, OrtStatus *, GetDimensionsCount, (const OrtTensorInfo *, size_t *))                       \
  X(62, OrtStatus *, GetDimensions, (const OrtTensorInfo *, int64_t *, size_t))                   \
  X(65, OrtStatus *, GetTensorTypeAndShape, (const OrtValue *, OrtTensorInfo **))                 \
  X(90, OrtStatus *, KernelContext_GetInput, (const OrtKernelContext *, size_t, const OrtValue **)) \
  X(91, OrtStatus *, KernelContext_GetOutput,                                                     \
    (OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **))                           \
  X(92, void, ReleaseEnv, (OrtEnv *))                                                             \
  X(93, void, ReleaseStatus, (OrtStatus *))                                                       \
  X(95, void, ReleaseSession, (OrtSession *))                                                     \
  X(96, void, ReleaseValue, (OrtValue *))                                                         \
  X(99, void, ReleaseTensorTypeAndShapeInfo, (OrtTensorInfo *))                                   \
  X(100, void, ReleaseSessionOptions, (OrtSessionOptions *))                                      \
  X(247, OrtStatus *, Logger_LogMessage,                                                          \
    (const OrtLogger *, int level, const char *text, const char *file, int line, const char *))   \
  X(272, OrtStatus *, ReadOpAttr, (const OrtOpAttr *, int type, void *data, size_t, size_t *))    \
  X(289, OrtStatus *, GetValueInfoName, (const OrtValueInfo *, const char **))                    \
  X(290, OrtStatus *, GetValueInfoTypeInfo, (const OrtValueInfo *, const OrtTypeInfo **))         \
  X(298, void, GetKeyValuePairs,                                                                  \
    (const OrtPairs *, const char *const **keys, const char *const **values, size_t *n))          \
  X(300, void, ReleaseKeyValuePairs, (OrtPairs *))                                                \
  X(307, int, HardwareDevice_Type, (const OrtDevice *))                                           \
  X(317, const void *const *, GetEpApi, (void))                                                   \
  X(318, OrtStatus *, GetTensorSizeInBytes, (const OrtValue *, size_t *))                         \
  X(334, OrtStatus *, Graph_GetModelPath, (const OrtGraph *, const char **))                      \
  X(338, OrtStatus *, Graph_GetNumInputs, (const OrtGraph *, size_t *))                           \
  X(339, OrtStatus *, Graph_GetInputs, (const OrtGraph *, const OrtValueInfo **, size_t))         \
  X(340, OrtStatus *, Graph_GetNumOutputs, (const OrtGraph *, size_t *))                          \
  X(341, OrtStatus *, Graph_GetOutputs, (const OrtGraph *, const OrtValueInfo **, size_t))        \
  X(344, OrtStatus *, Graph_GetNumNodes, (const OrtGraph *, size_t *))                            \
  X(345, OrtStatus *, Graph_GetNodes, (const OrtGraph *, const OrtNode **, size_t))               \
  X(346, OrtStatus *, Graph_GetParentNode, (const OrtGraph *, const OrtNode **))                  \
  X(350, OrtStatus *, Node_GetOperatorType, (const OrtNode *, const char **))                     \
  X(351, OrtStatus *, Node_GetDomain, (const OrtNode *, const char **))                           \
  X(353, OrtStatus *, Node_GetNumInputs, (const OrtNode *, size_t *))                             \
  X(354, OrtStatus *, Node_GetInputs, (const OrtNode *, const OrtValueInfo **, size_t))           \
  X(355, OrtStatus *, Node_GetNumOutputs, (const OrtNode *, size_t *))                            \
  X(356, OrtStatus *, Node_GetOutputs, (const OrtNode *, const OrtValueInfo **, size_t))          \
  X(361, OrtStatus *, Node_GetAttributeByName, (const OrtNode *, const char *, const OrtOpAttr **)) \
  X(379, OrtStatus *, GetSessionOptionsConfigEntries, (const OrtSessionOptions *, OrtPairs **))

typedef struct OrtFactory OrtFactory;
typedef struct OrtEp OrtEp;
typedef struct OrtCompute OrtCompute;

typedef struct {
  uint32_t version;
  bool drop_initializers;
} OrtFusion;

/* The same of the table for providers. */
#define ORT_EP_API(X)                                                                             \
  X(0, OrtStatus *, CreateEpDevice,                                                               \
    (OrtFactory *, const OrtDevice *, const OrtPairs *, const OrtPairs *, OrtEpDevice **))        \
  X(2, OrtStatus *, AddNodesToFuse, (OrtSupport *, const OrtNode *const *, size_t, const OrtFusion *))

#define ORT_MEMBER(place, result, name, arguments) result (*name) arguments;
typedef struct {
  ORT_API(ORT_MEMBER)
} Ort;
typedef struct {
  ORT_EP_API(ORT_MEMBER)
} OrtProviders;
#undef ORT_MEMBER

/* Records that the provider fills. Members that it leaves NULL are optional. */

struct OrtCompute {
  uint32_t version;
  OrtStatus *(*create)(OrtCompute *, void *context, void **state);
  OrtStatus *(*compute)(OrtCompute *, void *state, OrtKernelContext *);
  void (*release)(OrtCompute *, void *state);
};

struct OrtEp {
  uint32_t version;
  const char *(*name)(const OrtEp *);
  OrtStatus *(*capability)(OrtEp *, const OrtGraph *, OrtSupport *);
  OrtStatus *(*compile)(OrtEp *, const OrtGraph **, const OrtNode **fused, size_t n, OrtCompute **,
                        OrtNode **contexts);
  void (*release)(OrtEp *, OrtCompute **, size_t n);
  void *others[9]; /* layouts, dynamic options, runs, allocators, streams, compatibility */
};

struct OrtFactory {
  uint32_t version;
  const char *(*name)(const OrtFactory *);
  const char *(*vendor)(const OrtFactory *);
  OrtStatus *(*devices)(OrtFactory *, const OrtDevice *const *, size_t n, OrtEpDevice **made,
                        size_t most, size_t *n_made);
  OrtStatus *(*create)(OrtFactory *, const OrtDevice *const *, const OrtPairs *const *, size_t n,
                       const OrtSessionOptions *, const OrtLogger *, OrtEp **);
  void (*release)(OrtFactory *, OrtEp *);
  uint32_t (*vendor_id)(const OrtFactory *);
  const char *(*version_text)(const OrtFactory *);
  void *compatibility, *allocator, *free_allocator;
  OrtStatus *(*transfer)(OrtFactory *, void **);
  bool (*is_stream_aware)(const OrtFactory *);
  void *stream, *options;
};
