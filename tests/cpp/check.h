/* What the test programs share, in C and C++: CHECK, and the golden answers of tests/data/tiny.bnn. */
#ifndef OVSW_TESTS_CHECK_H
#define OVSW_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Also in release builds, unlike assert. */
#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* "folder/name", to be freed. */
static inline char* path_of(const char* folder, const char* name) {
  char* path = (char*)malloc(strlen(folder) + strlen(name) + 2);
  CHECK(path);
  sprintf(path, "%s/%s", folder, name);
  return path;
}

/* A file and a zero byte after it, to be freed. */
static inline unsigned char* read_all(const char* folder, const char* name, size_t* size) {
  char* path = path_of(folder, name);
  FILE* file = fopen(path, "rb");
  CHECK(file);
  CHECK(fseek(file, 0, SEEK_END) == 0);
  *size = (size_t)ftell(file);
  rewind(file);
  unsigned char* bytes = (unsigned char*)malloc(*size + 1);
  CHECK(bytes && fread(bytes, 1, *size, file) == *size);
  bytes[*size] = 0;
  fclose(file);
  free(path);
  return bytes;
}

/* The numbers of one key of tests/data/tiny.json, whatever their nesting. */
static inline size_t golden(const char* data, const char* key, double* numbers, size_t room) {
  size_t size, count = 0;
  char quoted[64];
  char* text = (char*)read_all(data, "tiny.json", &size);
  sprintf(quoted, "\"%s\":", key);
  const char* at = strstr(text, quoted);
  CHECK(at);
  for (at += strlen(quoted); *at && *at != '"'; ++at) {
    if (*at != '-' && (*at < '0' || *at > '9')) continue;
    char* end;
    CHECK(count < room);
    numbers[count++] = strtod(at, &end);
    at = end - 1;
  }
  free(text);
  return count;
}

#endif
