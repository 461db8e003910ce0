/* A model in the child of a fork(), while threads of the parent are in the middle of calls on it. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ovsw.h"

enum { PIXELS = 16, OUTPUTS = 2, THREADS = 3, FORKS = 40, HANG = 600 };

static const uint8_t pixels[PIXELS] = {1, 2, 3};
static float expected[OUTPUTS];
static atomic_int done;

static int right(ovsw_model* model) {
  float logits[OUTPUTS];
  return ovsw_run_pixels(model, 1, pixels, PIXELS, logits, OUTPUTS) == OVSW_OK &&
         !memcmp(logits, expected, sizeof logits);
}

static void* work(void* model) {
  while (!done) CHECK(right(model));
  return NULL;
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  char* path = path_of(argv[1], "tiny.bnn");
  ovsw_model* model;
  pthread_t threads[THREADS];
  CHECK(ovsw_load_file(path, NULL, &model) == OVSW_OK);
  CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS, expected, OUTPUTS) == OVSW_OK);
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, work, model) == 0);
  for (int i = 0; i < FORKS; ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(HANG); /* ends a child that hangs */
      if (!right(model) || !right(model)) _exit(1);
      ovsw_close(model);
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  done = 1;
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(right(model));
  ovsw_close(model);
  free(path);
  return 0;
}
