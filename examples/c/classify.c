/* classify [--logits FILE] MODEL.bnn IMAGE.ppm: classifies an image.
 *
 * The image is a binary PPM (P6, colour) or, for a network of one channel, a PGM (P5, grey); `convert cat.jpg cat.ppm`
 * makes one. It is cropped to the input's proportions and scaled by nearest neighbour, which is simpler than the
 * interpolation that networks are trained with; an image of the input's size is used unchanged. --logits writes the
 * output as raw float32 numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ovsw.h"

typedef struct {
  size_t channels, height, width;
  unsigned char* pixels; /* [row][column][channel] */
} image;

/* The next number of a PNM header, after spaces and comments; 0 if there is none or it is too large. */
static size_t header_number(FILE* file) {
  size_t number = 0;
  int c = getc(file);
  while (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '#') {
    if (c == '#') {
      while (c != '\n' && c != EOF) c = getc(file);
    } else {
      c = getc(file);
    }
  }
  for (; c >= '0' && c <= '9'; c = getc(file)) {
    number = number * 10 + (size_t)(c - '0');
    if (number > 65535) return 0;
  }
  return number; /* the one space after it, which the format requires, was read */
}

/* NULL on success, else the problem. */
static const char* read_image(const char* path, image* result) {
  const char* problem = NULL;
  FILE* file = fopen(path, "rb");
  if (!file) return "cannot be opened";
  const int p = getc(file), kind = getc(file);
  if (p != 'P' || (kind != '5' && kind != '6')) {
    problem = "is not a binary PPM or PGM";
  } else {
    result->channels = kind == '6' ? 3 : 1;
    result->width = header_number(file);
    result->height = header_number(file);
    if (!result->width || !result->height || header_number(file) != 255) {
      problem = "has a header with other numbers than width, height and 255";
    } else {
      const size_t size = result->channels * result->height * result->width;
      result->pixels = malloc(size);
      if (!result->pixels) {
        problem = "needs too much memory";
      } else if (fread(result->pixels, 1, size, file) != size) {
        problem = "is cut short";
      }
    }
  }
  fclose(file);
  return problem;
}

/* The largest part around the centre that has the proportions height : width, scaled to that size. */
static void fit(const image* from, size_t height, size_t width, unsigned char* to) {
  size_t part_h = from->height, part_w = from->height * width / height;
  if (part_w > from->width) {
    part_w = from->width;
    part_h = from->width * height / width;
  }
  const size_t top = (from->height - part_h) / 2, left = (from->width - part_w) / 2;
  for (size_t y = 0; y < height; ++y) {
    for (size_t x = 0; x < width; ++x) {
      const size_t row = top + (2 * y + 1) * part_h / (2 * height), column = left + (2 * x + 1) * part_w / (2 * width);
      memcpy(to, from->pixels + (row * from->width + column) * from->channels, from->channels);
      to += from->channels;
    }
  }
}

/* The five largest, with the softmax as probability. */
static void print_top(const ovsw_model* model, const float* logits, size_t count) {
  size_t shown[5] = {0};
  double sum = 0;
  float largest = logits[0];
  for (size_t i = 0; i < count; ++i) largest = logits[i] > largest ? logits[i] : largest;
  for (size_t i = 0; i < count; ++i) sum += exp((double)logits[i] - largest);
  for (size_t rank = 0; rank < 5 && rank < count; ++rank) {
    size_t best = count;
    for (size_t i = 0; i < count; ++i) {
      int taken = 0;
      for (size_t k = 0; k < rank; ++k) taken |= shown[k] == i;
      if (!taken && (best == count || logits[i] > logits[best])) best = i;
    }
    shown[rank] = best;
    printf("%6.2f %%  ", 100 * exp((double)logits[best] - largest) / sum);
    if (ovsw_label(model, best)) {
      printf("%s\n", ovsw_label(model, best));
    } else {
      printf("class %zu\n", best);
    }
  }
}

static int write_logits(const char* path, const float* logits, size_t count) {
  FILE* file = fopen(path, "wb");
  if (!file) return 0;
  const int written = fwrite(logits, sizeof *logits, count, file) == count;
  return fclose(file) == 0 && written;
}

/* 0, or 1 after saying what is wrong. */
static int classify(ovsw_model* model, const char* path, const char* logits_path) {
  image picture = {0, 0, 0, NULL};
  unsigned char* pixels = NULL;
  float* logits = NULL;
  int failed = 1;
  const size_t channels = ovsw_input_channels(model), height = ovsw_input_height(model);
  const size_t width = ovsw_input_width(model), count = ovsw_output_count(model);
  const size_t size = channels * height * width;
  const char* problem = read_image(path, &picture);
  if (problem) {
    fprintf(stderr, "classify: %s %s\n", path, problem);
  } else if (picture.channels != channels) {
    fprintf(stderr, "classify: %s has %zu channels, the network takes %zu\n", path, picture.channels, channels);
  } else if (!(pixels = malloc(size)) || !(logits = malloc(count * sizeof *logits))) {
    fprintf(stderr, "classify: out of memory\n");
  } else {
    fit(&picture, height, width, pixels);
    if (ovsw_run_pixels(model, 1, pixels, size, logits, count) != OVSW_OK) {
      fprintf(stderr, "classify: %s\n", ovsw_last_error());
    } else if (logits_path && !write_logits(logits_path, logits, count)) {
      fprintf(stderr, "classify: %s cannot be written\n", logits_path);
    } else {
      print_top(model, logits, count);
      failed = 0;
    }
  }
  free(logits);
  free(pixels);
  free(picture.pixels);
  return failed;
}

int main(int argc, char** argv) {
  const int named = argc == 5 && strcmp(argv[1], "--logits") == 0;
  if (argc != 3 && !named) {
    fprintf(stderr, "usage: classify [--logits FILE] MODEL.bnn IMAGE.ppm\n");
    return 2;
  }
  ovsw_model* model;
  if (ovsw_load_file(argv[argc - 2], NULL, &model) != OVSW_OK) {
    fprintf(stderr, "classify: %s\n", ovsw_last_error());
    return 1;
  }
  const int failed = classify(model, argv[argc - 1], named ? argv[2] : NULL);
  ovsw_close(model);
  return failed;
}
