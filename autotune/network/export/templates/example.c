/* cc example.c -I. -L. -l@name@ -Wl,-rpath,'$ORIGIN' -o example && ./example */

#include "@name@.h"

#include <stdio.h>
#include <stdlib.h>

int main(void) {
  @name@_model *model;
  @name@_inputs inputs = {0};
  @name@_outputs outputs = {0};
  int status = @name@_create(NULL, &model);
  if (status) {
    fprintf(stderr, "%s\n", @name@_strerror(status));
    return 1;
  }
@arrays@
  status = @name@_run(model, &inputs, &outputs);
  if (status)
    fprintf(stderr, "%s\n", @name@_strerror(status));
  else
@shown@
@frees@
  @name@_destroy(model);
  return status != 0;
}
