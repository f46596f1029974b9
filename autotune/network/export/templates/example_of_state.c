/* cc example.c -I. -L. -l@name@ -Wl,-rpath,'$ORIGIN' -o example && ./example */

#include "@name@.h"

#include <stdio.h>
#include <stdlib.h>

int main(void) {
  @name@_model *model;
  @name@_session *session = NULL;
  @name@_inputs inputs = {0};
  @name@_outputs outputs = {0};
@record@  int status = @name@_create(NULL, &model);
  if (!status) status = @name@_open(model, &session);
  if (status) {
    fprintf(stderr, "%s\n", @name@_strerror(status));
    return 1;
  }
@arrays@
@begin@  for (int n = 0; n < 3 && !status; n++) status = @name@_step(session, 1, &inputs, &outputs);
  if (status)
    fprintf(stderr, "%s\n", @name@_strerror(status));
  else
@shown@
@frees@
  @name@_close(session);
  @name@_destroy(model);
  return status != 0;
}
