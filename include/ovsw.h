/* ovsw: runs binary neural networks from `.bnn` files. This is the C interface of libovsw (C99 and C++).
 *
 *   ovsw_model *model;
 *   if (ovsw_load_file("resnet18.bnn", NULL, &model) != OVSW_OK) { puts(ovsw_last_error()); return 1; }
 *   ... ovsw_run_pixels(model, 1, pixels, pixel_count, logits, logit_count) ...
 *   ovsw_close(model);
 *
 * Errors. A function that can fail returns a status. The text of a failure is kept per thread: ovsw_last_error(). No
 * function prints, aborts, or lets a C++ exception out.
 *
 * Threads. Different models never disturb each other. What may be done with one model at once is said with each
 * function. A model may be used in the child of a fork(), whatever other threads were doing with it in the parent.
 *
 * Texts are UTF-8 and end with a zero byte. Those that belong to a model live as long as it.
 *
 * Compatibility. A program that was compiled with this header runs with every later library of the same
 * OVSW_API_VERSION, which is the number in the library's soname. Functions and status codes may be added; none changes.
 * A model is an opaque pointer. ovsw_options carries its own size and may grow at its end.
 */
#ifndef OVSW_H
#define OVSW_H

#include <stddef.h>
#include <stdint.h>

#define OVSW_API_VERSION 1

#if defined(__GNUC__)
#define OVSW_API __attribute__((visibility("default")))
#else
#define OVSW_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int ovsw_status;
enum {
  OVSW_OK = 0,
  OVSW_INVALID_ARGUMENT = 1, /* NULL, a wrong size, a NaN, an unknown name */
  OVSW_CANNOT_READ = 2,      /* the file is missing, a folder, or not readable */
  OVSW_INVALID_MODEL = 3,    /* not a .bnn file, damaged, one that breaks the rules of docs/format.md, or one that needs
                                more than memory_limit */
  OVSW_UNSUPPORTED = 4,      /* an instruction set that this library or CPU does not have */
  OVSW_OUT_OF_MEMORY = 5,
  OVSW_SYSTEM_ERROR = 6 /* anything else, such as a thread that the system refuses */
};

typedef struct ovsw_model ovsw_model;

/* How to load. Begin with OVSW_OPTIONS and change what you need; zero means the default in every field, and in those
 * that a later version adds. A library refuses fields that it does not know if they are not zero. */
typedef struct ovsw_options {
  uint32_t size;         /* sizeof(ovsw_options) */
  int32_t threads;       /* that one call of ovsw_run_* uses, 1 to 256; the result does not depend on it; 0: one */
  const char* isa;       /* instruction set, by name, "" for the best of this CPU; NULL: what the environment variable
                            OVSW_ISA says, or else the best */
  uint64_t memory_limit; /* bytes that the model may take, as ovsw_memory counts them: a file that needs more is refused
                            before it gets any; 0: 160 MiB, and four times the size of the file */
} ovsw_options;
#define OVSW_OPTIONS {(uint32_t)sizeof(ovsw_options), 0, NULL, 0}

/* The version of the library, as "1.2.3". Threads: any, at any time. */
OVSW_API const char* ovsw_version(void);

/* Why the last call that failed in this thread did so, in one line; "" if none did. It is valid until the next failure
 * in this thread, and no other thread sees it. */
OVSW_API const char* ovsw_last_error(void);

/* Load a file, by path or from `size` bytes that may be freed afterwards. `options` may be NULL. On failure *model is
 * NULL. A file need not be trusted: one that is damaged or hostile is refused, or one that needs more memory than it
 * may have. How long a run takes is not bounded: a small file may ask for much work.
 *
 * Threads: any, at any time; but where OVSW_ISA is read (see ovsw_options), nothing may change the environment
 * meanwhile. */
OVSW_API ovsw_status ovsw_load_file(const char* path, const ovsw_options* options, ovsw_model** model);
OVSW_API ovsw_status ovsw_load_memory(const void* data, size_t size, const ovsw_options* options, ovsw_model** model);

/* Free a model and every text of it. NULL is allowed.
 *
 * Threads: one, when no other call on this model is in progress or will follow. */
OVSW_API void ovsw_close(ovsw_model* model);

/* What a model is, down to ovsw_numerics. These cannot fail; of NULL they give 0 or NULL.
 *
 * Threads: any, at any time before ovsw_close. */
OVSW_API size_t ovsw_input_channels(const ovsw_model* model);
OVSW_API size_t ovsw_input_height(const ovsw_model* model);
OVSW_API size_t ovsw_input_width(const ovsw_model* model);
OVSW_API size_t ovsw_output_count(const ovsw_model* model); /* numbers per image, of all outputs together */
OVSW_API size_t ovsw_threads(const ovsw_model* model);

/* What options.memory_limit bounds, in bytes: weights as kernels want them, what padding costs, and of one call of
 * ovsw_run_* the maps, what each thread works in, and the arrays of its caller (an image as float, two times the
 * logits). Calls in progress at the same time have maps and work space of their own, each as much. */
OVSW_API size_t ovsw_memory(const ovsw_model* model);

/* Channels, height and width of an output: most networks have one, of a channel per class and 1 x 1. NULL if there is
 * no such output. */
OVSW_API const size_t* ovsw_output_shape(const ovsw_model* model, size_t index);

/* The name of a channel of the first output; NULL if the file names none, or there is no such channel. */
OVSW_API const char* ovsw_label(const ovsw_model* model, size_t index);

/* What else the file says of itself: a JSON object, as docs/format.md describes it. */
OVSW_API const char* ovsw_metadata(const ovsw_model* model);

/* How images are prepared: the shorter side is scaled to ovsw_resize, the input is cut from the centre, and in each
 * channel a pixel becomes the value (pixel / 255 - mean) / std. ovsw_run_pixels does the last step. */
OVSW_API size_t ovsw_resize(const ovsw_model* model);
OVSW_API const float* ovsw_mean(const ovsw_model* model);
OVSW_API const float* ovsw_std(const ovsw_model* model);

/* The instruction set in use, and how it computes: "integer" (the same bits on every machine) or "float". */
OVSW_API const char* ovsw_isa(const ovsw_model* model);
OVSW_API const char* ovsw_numerics(const ovsw_model* model);

/* Run `images` images, at least one, and write their logits one image after another. The counts are in elements and are
 * checked: images * channels * height * width, and images * ovsw_output_count(model). After a failure the logits are
 * undefined. What a network of several outputs gives is written one output after another, a map as
 * [row][column][channel].
 *
 * Pixels are [image][row][column][channel], as decoders give them. Values are [image][channel][row][column], already
 * normalised, without NaN and infinity. Neither they nor the logits need be aligned.
 *
 * Threads: any, several at once too. Each call in progress has memory and worker threads of its own, which the model
 * keeps for later calls. */
OVSW_API ovsw_status ovsw_run_pixels(ovsw_model* model, size_t images, const uint8_t* pixels, size_t pixel_count,
                                     float* logits, size_t logit_count);
OVSW_API ovsw_status ovsw_run_values(ovsw_model* model, size_t images, const float* values, size_t value_count,
                                     float* logits, size_t logit_count);

#ifdef __cplusplus
}
#endif

#endif
