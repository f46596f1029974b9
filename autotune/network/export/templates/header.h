/* @name@: @model@, compiled by autotune @version@ for @cpu@.
 *
 * A model may be called by any number of threads at once, and in the child of a fork. Outputs may
 * not overlap inputs. @name@_@call@ allocates nothing. */

#ifndef @guard@_H
#define @guard@_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define @guard@_API __attribute__((visibility("default")))
#else
#define @guard@_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

@sizes@

@lengths@/* Status of @name@_create and @name@_@call@: @name@_strerror tells them as text. */
enum {
  @guard@_OK = 0,
  @guard@_OTHER_CPU = 1,   /* this CPU lacks instructions that the network was compiled for */
  @guard@_NO_MEMORY = 2,
  @guard@_NO_ARGUMENT = 3, /* a pointer is null, or a number below zero */
  @guard@_OTHER_SHAPE = 4, /* no variant is for inputs of these shapes */
  @guard@_NO_WEIGHTS = 5@more@   /* the file of weights cannot be read, or is of another network */
@statuses@};

/* All zeros are the defaults. */
typedef struct {
  int threads;         /* that divide an inference; 0: @threads@, or fewer where fewer can run */
  int callers;         /* calls at once, each with memory of its own; others wait; 0: 1 */
  int any_cpu;         /* 1: do not look whether this CPU has the instructions */
  const char *weights; /* the file of weights; NULL: @weights@ */
} @name@_options;

typedef struct @name@_model @name@_model;

@inputs@
@outputs@
/* Make a model; `options` may be NULL. `*model` is NULL where the status is not @guard@_OK. */
@guard@_API int @name@_create(const @name@_options *options, @name@_model **model);

@calls@
/* Free a model that no thread is in a call of; NULL is none. */
@guard@_API void @name@_destroy(@name@_model *model);

/* Names, types and shapes of inputs and outputs, as JSON. */
@guard@_API const char *@name@_signature(void);

@guard@_API const char *@name@_strerror(int status);

#ifdef __cplusplus
}
#endif

#endif
