/* The contract of include/ovsw.h, from C99: what is refused and how, what a model says of itself, threads. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "ovsw.h"

enum { PIXELS = 16, OUTPUTS = 2 };

static const char *data, *scratch;
static uint8_t pixels[PIXELS];
static float values[PIXELS], pixels_logits[OUTPUTS], values_logits[OUTPUTS];

static void read_golden(void) {
  double numbers[PIXELS];
  CHECK(golden(data, "pixels", numbers, PIXELS) == PIXELS);
  for (int i = 0; i < PIXELS; ++i) pixels[i] = (uint8_t)numbers[i];
  CHECK(golden(data, "values", numbers, PIXELS) == PIXELS);
  for (int i = 0; i < PIXELS; ++i) values[i] = (float)numbers[i];
  CHECK(golden(data, "pixels_logits", numbers, PIXELS) == OUTPUTS);
  for (int i = 0; i < OUTPUTS; ++i) pixels_logits[i] = (float)numbers[i];
  CHECK(golden(data, "values_logits", numbers, PIXELS) == OUTPUTS);
  for (int i = 0; i < OUTPUTS; ++i) values_logits[i] = (float)numbers[i];
}

static ovsw_model* load(int32_t threads, const char* isa) {
  ovsw_options options = OVSW_OPTIONS;
  options.threads = threads;
  options.isa = isa;
  ovsw_model* model;
  char* path = path_of(data, "tiny.bnn");
  CHECK(ovsw_load_file(path, &options, &model) == OVSW_OK);
  free(path);
  return model;
}

static int close_to(const float* a, const float* b) { return fabsf(a[0] - b[0]) < 1e-6f && fabsf(a[1] - b[1]) < 1e-6f; }

static int says(const char* words) { return strstr(ovsw_last_error(), words) != NULL; }

static void test_what_a_model_says(void) {
  ovsw_model* model = load(3, NULL);
  CHECK(ovsw_input_channels(model) == 1 && ovsw_input_height(model) == 4 && ovsw_input_width(model) == 4);
  CHECK(ovsw_output_count(model) == OUTPUTS);
  const size_t* shape = ovsw_output_shape(model, 0);
  CHECK(shape && shape[0] == OUTPUTS && shape[1] == 1 && shape[2] == 1);
  CHECK(!ovsw_output_shape(model, 1) && !ovsw_output_shape(model, SIZE_MAX));
  CHECK(strcmp(ovsw_label(model, 0), "no") == 0 && strcmp(ovsw_label(model, 1), "s\xC3\xAD") == 0);
  CHECK(!ovsw_label(model, 2) && !ovsw_label(model, SIZE_MAX));
  CHECK(strcmp(ovsw_metadata(model), "{\"arch\":\"tiny\",\"num_classes\":2,\"labels\":[\"no\",\"s\xC3\xAD\"]}") == 0);
  CHECK(ovsw_mean(model)[0] == 0.5f && ovsw_std(model)[0] == 0.25f);
  CHECK(ovsw_resize(model) == 4 && ovsw_threads(model) == 3 && ovsw_memory(model) > 1000);
  CHECK(strcmp(ovsw_numerics(model), "float") == 0);
  CHECK(strlen(ovsw_isa(model)) > 0);
  ovsw_close(model);
  int major, minor, patch;
  CHECK(sscanf(ovsw_version(), "%d.%d.%d", &major, &minor, &patch) == 3);
}

static void test_no_model_says_nothing(void) {
  CHECK(!ovsw_input_channels(NULL) && !ovsw_input_height(NULL) && !ovsw_input_width(NULL) && !ovsw_output_count(NULL));
  CHECK(!ovsw_output_shape(NULL, 0));
  CHECK(!ovsw_label(NULL, 0) && !ovsw_metadata(NULL) && !ovsw_mean(NULL) && !ovsw_std(NULL));
  CHECK(!ovsw_resize(NULL) && !ovsw_threads(NULL) && !ovsw_memory(NULL) && !ovsw_isa(NULL) && !ovsw_numerics(NULL));
  ovsw_close(NULL);
}

static void test_runs(void) {
  ovsw_model* model = load(0, NULL);
  float logits[2 * OUTPUTS];
  uint8_t two[2 * PIXELS];
  CHECK(ovsw_threads(model) == 1);
  CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS, logits, OUTPUTS) == OVSW_OK && close_to(logits, pixels_logits));
  CHECK(ovsw_run_values(model, 1, values, PIXELS, logits, OUTPUTS) == OVSW_OK && close_to(logits, values_logits));
  memset(two, 0, PIXELS);
  memcpy(two + PIXELS, pixels, PIXELS);
  CHECK(ovsw_run_pixels(model, 2, two, 2 * PIXELS, logits, 2 * OUTPUTS) == OVSW_OK);
  CHECK(!close_to(logits, pixels_logits) && close_to(logits + OUTPUTS, pixels_logits));
  ovsw_close(model);
}

/* Values and logits at any address. */
static void test_unaligned_runs(void) {
  ovsw_model* model = load(1, NULL);
  char from[sizeof values + 4], to[OUTPUTS * sizeof(float) + 4];
  for (size_t offset = 0; offset < 4; ++offset) {
    void *moved = from + offset, *room = to + offset; /* through void: a cast would promise alignment */
    float logits[OUTPUTS];
    memcpy(moved, values, sizeof values);
    CHECK(ovsw_run_values(model, 1, moved, PIXELS, room, OUTPUTS) == OVSW_OK);
    memcpy(logits, room, sizeof logits);
    CHECK(close_to(logits, values_logits));
  }
  ovsw_close(model);
}

static void test_bad_runs(void) {
  ovsw_model* model = load(1, NULL);
  float logits[OUTPUTS], wrong[PIXELS];
  CHECK(ovsw_run_pixels(NULL, 1, pixels, PIXELS, logits, OUTPUTS) == OVSW_INVALID_ARGUMENT && says("model is NULL"));
  CHECK(ovsw_run_pixels(model, 1, NULL, PIXELS, logits, OUTPUTS) == OVSW_INVALID_ARGUMENT && says("images is NULL"));
  CHECK(ovsw_run_values(model, 1, values, PIXELS, NULL, OUTPUTS) == OVSW_INVALID_ARGUMENT && says("logits is NULL"));
  CHECK(ovsw_run_pixels(model, 0, pixels, 0, logits, 0) == OVSW_INVALID_ARGUMENT && says("no images"));
  CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS - 1, logits, OUTPUTS) == OVSW_INVALID_ARGUMENT);
  CHECK(says("1 images hold 15 elements, expected 16 (1x4x4) each"));
  CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS + 1, logits, OUTPUTS) == OVSW_INVALID_ARGUMENT);
  CHECK(ovsw_run_pixels(model, 2, pixels, PIXELS, logits, 2 * OUTPUTS) == OVSW_INVALID_ARGUMENT);
  CHECK(ovsw_run_pixels(model, 2, pixels, 2 * PIXELS + 1, logits, 2 * OUTPUTS) == OVSW_INVALID_ARGUMENT);
  CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS, logits, OUTPUTS - 1) == OVSW_INVALID_ARGUMENT);
  CHECK(says("logit_count is 1, expected 1 times 2"));
  CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS, logits, OUTPUTS + 1) == OVSW_INVALID_ARGUMENT);
  /* Products that wrap around to what was given. */
  const size_t many = SIZE_MAX / PIXELS + 1;
  CHECK(ovsw_run_pixels(model, many, pixels, 0, logits, many * OUTPUTS) == OVSW_INVALID_ARGUMENT && says("elements"));
  CHECK(ovsw_run_pixels(model, many + 1, pixels, PIXELS, logits, OUTPUTS) == OVSW_INVALID_ARGUMENT);
  memcpy(wrong, values, sizeof wrong);
  wrong[3] = NAN;
  wrong[PIXELS - 1] = INFINITY;
  CHECK(ovsw_run_values(model, 1, wrong, PIXELS, logits, OUTPUTS) == OVSW_INVALID_ARGUMENT);
  CHECK(says("2 NaN or infinite values"));
  CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS, logits, OUTPUTS) == OVSW_OK && close_to(logits, pixels_logits));
  CHECK(says("2 NaN or infinite values")); /* success leaves the last failure's text */
  ovsw_close(model);
}

/* Writes a file into the scratch folder, loads it, and removes it. */
static ovsw_status load_bytes(const char* name, const void* bytes, size_t size) {
  char* path = path_of(scratch, name);
  FILE* file = fopen(path, "wb");
  CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
  ovsw_model* model = (ovsw_model*)&data; /* anything but NULL */
  const ovsw_status status = ovsw_load_file(path, NULL, &model);
  CHECK((status == OVSW_OK) == (model != NULL));
  CHECK(status == OVSW_OK || says(name));
  ovsw_close(model);
  remove(path);
  free(path);
  return status;
}

static void test_files(void) {
  ovsw_model* model = (ovsw_model*)&data;
  size_t size;
  unsigned char* bytes = read_all(data, "tiny.bnn", &size);
  char* pipe = path_of(scratch, "pipe.bnn");
  CHECK(load_bytes("whole.bnn", bytes, size) == OVSW_OK);
  CHECK(load_bytes("empty.bnn", bytes, 0) == OVSW_INVALID_MODEL && says("magic"));
  CHECK(load_bytes("text.bnn", "hello, world", 12) == OVSW_INVALID_MODEL && says("magic"));
  CHECK(load_bytes("short.bnn", bytes, size - 1) == OVSW_INVALID_MODEL && says("truncated"));
  CHECK(load_bytes("long.bnn", bytes, size + 1) == OVSW_INVALID_MODEL && says("too long"));
  bytes[size / 2] ^= 4;
  CHECK(load_bytes("flipped.bnn", bytes, size) == OVSW_INVALID_MODEL && says("checksum"));
  CHECK(ovsw_load_file("no/such.bnn", NULL, &model) == OVSW_CANNOT_READ && says("no/such.bnn: no such file") && !model);
  CHECK(ovsw_load_file("", NULL, &model) == OVSW_CANNOT_READ);
  CHECK(ovsw_load_file(data, NULL, &model) == OVSW_CANNOT_READ && says("is a folder"));
  remove(pipe);
  CHECK(mkfifo(pipe, 0600) == 0);
  CHECK(ovsw_load_file(pipe, NULL, &model) == OVSW_CANNOT_READ && says("not a regular file")); /* and does not wait */
  remove(pipe);
  char endless[5000];
  memset(endless, 'x', sizeof endless - 1);
  endless[sizeof endless - 1] = 0;
  CHECK(ovsw_load_file(endless, NULL, &model) == OVSW_CANNOT_READ);
  CHECK(strlen(ovsw_last_error()) > 500); /* cut, but there */
  CHECK(ovsw_load_file(NULL, NULL, &model) == OVSW_INVALID_ARGUMENT && says("path is NULL"));
  CHECK(ovsw_load_file(data, NULL, NULL) == OVSW_INVALID_ARGUMENT && says("model is NULL"));
  free(pipe);
  free(bytes);
}

static void test_memory(void) {
  size_t size;
  unsigned char* bytes = read_all(data, "tiny.bnn", &size);
  unsigned char* moved = malloc(size + 8);
  CHECK(moved);
  for (size_t offset = 0; offset < 8; ++offset) { /* any alignment will do */
    ovsw_model* model;
    float logits[OUTPUTS];
    memcpy(moved + offset, bytes, size);
    CHECK(ovsw_load_memory(moved + offset, size, NULL, &model) == OVSW_OK);
    memset(moved, 0xFF, size + 8); /* nothing of it is kept */
    CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS, logits, OUTPUTS) == OVSW_OK && close_to(logits, pixels_logits));
    ovsw_close(model);
  }
  ovsw_model* model = (ovsw_model*)&data;
  CHECK(ovsw_load_memory(NULL, size, NULL, &model) == OVSW_INVALID_ARGUMENT && says("data is NULL") && !model);
  CHECK(ovsw_load_memory(bytes, 0, NULL, &model) == OVSW_INVALID_MODEL);
  CHECK(ovsw_load_memory(bytes, size - 1, NULL, &model) == OVSW_INVALID_MODEL && !model);
  CHECK(ovsw_load_memory(bytes, size, NULL, NULL) == OVSW_INVALID_ARGUMENT);
  free(moved);
  free(bytes);
}

static ovsw_status load_with(const ovsw_options* options, char* isa) {
  ovsw_model* model = (ovsw_model*)&data;
  char* path = path_of(data, "tiny.bnn");
  const ovsw_status status = ovsw_load_file(path, options, &model);
  CHECK((status == OVSW_OK) == (model != NULL));
  if (isa && model) strcpy(isa, ovsw_isa(model));
  ovsw_close(model);
  free(path);
  return status;
}

static void test_options(void) {
  struct {
    ovsw_options known;
    uint64_t later;
  } larger = {OVSW_OPTIONS, 0};
  ovsw_options options = OVSW_OPTIONS;
  char best[64], isa[64];
  struct {
    uint32_t size;
    int32_t threads;
    const char* isa;
    uint64_t beyond;
  } first = {8 + sizeof(char*), 3, "portable",
             1}; /* as programs of the first version have it; what follows is theirs */
  CHECK(sizeof(ovsw_options) == 24 + sizeof(char*)); /* no padding, or a later field would fall into it */
  CHECK(load_with((const ovsw_options*)&first, isa) == OVSW_OK && strcmp(isa, "portable") == 0);
  CHECK(load_with(&options, best) == OVSW_OK);
  larger.known.size = (uint32_t)sizeof larger;
  CHECK(load_with(&larger.known, NULL) == OVSW_OK);
  larger.later = 1;
  CHECK(load_with(&larger.known, NULL) == OVSW_INVALID_ARGUMENT && says("fields unknown to this version"));
  options.size = (uint32_t)sizeof options - 1;
  CHECK(load_with(&options, NULL) == OVSW_INVALID_ARGUMENT && says("options.size"));
  options.size = UINT32_MAX;
  CHECK(load_with(&options, NULL) == OVSW_INVALID_ARGUMENT && says("options.size"));
  options.size = 0;
  CHECK(load_with(&options, NULL) == OVSW_INVALID_ARGUMENT);
  options.size = (uint32_t)sizeof options;
  for (int i = 0; i < 3; ++i) {
    const int32_t refused[] = {-1, 257, INT32_MIN};
    options.threads = refused[i];
    CHECK(load_with(&options, NULL) == OVSW_INVALID_ARGUMENT && says("threads is"));
  }
  options.threads = 256;
  CHECK(load_with(&options, NULL) == OVSW_OK);
  options.memory_limit = 1;
  CHECK(load_with(&options, NULL) == OVSW_INVALID_MODEL && says("bytes of memory") && says("the limit is 1;"));
  options.memory_limit = UINT64_MAX;
  CHECK(load_with(&options, NULL) == OVSW_OK);
  options.memory_limit = 0;
  options.work_limit = 1;
  CHECK(load_with(&options, NULL) == OVSW_INVALID_MODEL && says("billion multiply-adds") && says("work_limit"));
  options.size = (uint32_t)offsetof(ovsw_options, work_limit); /* of a program from before there was one */
  CHECK(load_with(&options, NULL) == OVSW_OK);
  options.size = (uint32_t)sizeof options;
  options.work_limit = 0;
  options.threads = 1;
  options.isa = "abacus";
  CHECK(load_with(&options, NULL) == OVSW_INVALID_ARGUMENT && says("abacus"));
  options.isa = "portable";
  CHECK(load_with(&options, isa) == OVSW_OK && strcmp(isa, "portable") == 0);
#if defined(__x86_64__)
  options.isa = "arm_neon";
#else
  options.isa = "x86_avx2";
#endif
  CHECK(load_with(&options, NULL) == OVSW_UNSUPPORTED && says(options.isa));
  options.isa = NULL;
  CHECK(setenv("OVSW_ISA", "portable", 1) == 0);
  CHECK(load_with(&options, isa) == OVSW_OK && strcmp(isa, "portable") == 0);
  CHECK(load_with(NULL, isa) == OVSW_OK && strcmp(isa, "portable") == 0);
  options.isa = "";
  CHECK(load_with(&options, isa) == OVSW_OK && strcmp(isa, best) == 0);
  CHECK(setenv("OVSW_ISA", "abacus", 1) == 0);
  CHECK(load_with(NULL, NULL) == OVSW_INVALID_ARGUMENT && says("abacus"));
  CHECK(unsetenv("OVSW_ISA") == 0);
}

/* Each thread runs on the one model and fails in its own way, whose text it must find again. */
static void* work(void* argument) {
  ovsw_model* model = argument;
  static int counter;
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  CHECK(strcmp(ovsw_last_error(), "") == 0);
  pthread_mutex_lock(&mutex);
  const size_t self = (size_t)++counter;
  pthread_mutex_unlock(&mutex);
  char words[64];
  sprintf(words, "1 images hold %zu elements", 100 + self);
  for (int i = 0; i < 50; ++i) {
    float logits[OUTPUTS];
    CHECK(ovsw_run_pixels(model, 1, pixels, 100 + self, logits, OUTPUTS) == OVSW_INVALID_ARGUMENT);
    CHECK(ovsw_run_pixels(model, 1, pixels, PIXELS, logits, OUTPUTS) == OVSW_OK && close_to(logits, pixels_logits));
    CHECK(ovsw_run_values(model, 1, values, PIXELS, logits, OUTPUTS) == OVSW_OK && close_to(logits, values_logits));
    CHECK(says(words));
    CHECK(strcmp(ovsw_label(model, 0), "no") == 0);
  }
  return NULL;
}

static void test_threads(void) {
  enum { THREADS = 6 };
  ovsw_model* model = load(2, NULL);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, work, model) == 0);
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  ovsw_close(model);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  data = argv[1];
  scratch = argv[2];
  unsetenv("OVSW_ISA");
  CHECK(strcmp(ovsw_last_error(), "") == 0);
  read_golden();
  test_what_a_model_says();
  test_no_model_says_nothing();
  test_runs();
  test_unaligned_runs();
  test_bad_runs();
  test_files();
  test_memory();
  test_options();
  test_threads();
  return 0;
}
