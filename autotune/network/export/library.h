/* What any exported library tells of itself, so that one program calls all of them: NAME_library().
 *
 * The records of a call are words of eight bytes: of an input its address, then its shape where
 * calls decide it; of an output its address. */

#include <stdint.h>

#define AUTOTUNE_LIBRARY 1 /* the version of these records */

typedef struct {
  const char *name;
  int32_t type, rank;      /* as ONNX numbers the types of elements */
  int32_t word, shape;     /* of the record; -1: the shape is always the same */
  const int64_t *extents;  /* of the longest where calls decide */
} AutotuneTensor;

typedef struct {
  int threads, callers, any_cpu;
  const char *weights;
} AutotuneOptions;

typedef struct {
  int32_t version, n_inputs, n_outputs, input_words, result_words;
  const AutotuneTensor *inputs, *outputs; /* `shape` of an output: a word of what `shapes` writes */
  int (*create)(const void *options, void **model);
  int (*run)(void *model, const void *inputs, const void *outputs);
  int (*shapes)(const void *inputs, void *results); /* NULL where results have fixed shapes */
  void (*destroy)(void *model);
  const char *(*strerror)(int status);
} AutotuneLibrary;
