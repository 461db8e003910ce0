/* ovsw: runs binary neural networks from `.bnn` files. This is the C interface of libovsw (C99 and C++).
 *
 *   ovsw_model *model;
 *   if (ovsw_load_file("resnet18.bnn", NULL, &model) != OVSW_OK) { puts(ovsw_last_error()); return 1; }
 *   ... ovsw_run_pixels(model, 1, pixels, pixel_count, logits, logit_count) ...
 *   ovsw_close(model);
 *
 * Errors. A function that can fail returns a status. ovsw_last_error() returns the message, which is kept per thread.
 * No function prints, aborts, or lets a C++ exception out.
 *
 * Threads. Different models are independent. Each function says which calls on the same model may run at the same time.
 * A model may be used in the child of a fork(), whatever other threads were doing with it in the parent.
 *
 * Strings are UTF-8 and zero-terminated. Those that belong to a model are valid until it is closed.
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
  OVSW_INVALID_MODEL = 3,    /* not a .bnn file, damaged, against the rules of docs/format.md, or in need of more than
                                memory_limit */
  OVSW_UNSUPPORTED = 4,      /* an instruction set that this library or CPU does not have */
  OVSW_OUT_OF_MEMORY = 5,
  OVSW_SYSTEM_ERROR = 6 /* anything else, such as a thread that cannot be started */
};

typedef struct ovsw_model ovsw_model;

/* How to load. Begin with OVSW_OPTIONS and change what you need. Zero means the default in every field, including those
 * that later versions add. A library refuses unknown fields that are not zero. */
typedef struct ovsw_options {
  uint32_t size;         /* sizeof(ovsw_options) */
  int32_t threads;       /* threads of one call of ovsw_run_*, 1 to 256; results do not depend on it; 0: one */
  const char* isa;       /* name of the instruction set, "" for the best of this CPU; NULL: the environment variable
                            OVSW_ISA if it is set, else the best */
  uint64_t memory_limit; /* bytes that the model may use, as ovsw_memory counts them: a file that needs more is refused
                            before any of it is allocated; 0: 160 MiB plus four times the size of the file */
  uint64_t work_limit;   /* the work of one image, roughly in multiply-adds: a file that takes more is refused before it
                            runs; 0: 10^12 */
} ovsw_options;
#define OVSW_OPTIONS {(uint32_t)sizeof(ovsw_options), 0, NULL, 0, 0}

/* The version of the library, as "1.2.3". Threads: any, at any time. */
OVSW_API const char* ovsw_version(void);

/* The message of the last call that failed in this thread, in one line; "" if none failed. It is valid until the next
 * failure in this thread; other threads have their own. */
OVSW_API const char* ovsw_last_error(void);

/* Load a file, by path or from `size` bytes that may be freed afterwards. `options` may be NULL. On failure *model is
 * NULL. The file need not be trusted: if it is damaged or hostile, or needs more memory than the limit, it is refused.
 * The time of a run is not limited: a small file may ask for much work.
 *
 * Threads: any, at any time; but while OVSW_ISA is read (see ovsw_options), nothing may change the environment. */
OVSW_API ovsw_status ovsw_load_file(const char* path, const ovsw_options* options, ovsw_model** model);
OVSW_API ovsw_status ovsw_load_memory(const void* data, size_t size, const ovsw_options* options, ovsw_model** model);

/* Free a model and its strings. NULL is allowed.
 *
 * Threads: one, when no other call on this model is in progress or will follow. */
OVSW_API void ovsw_close(ovsw_model* model);

/* Properties of a model, down to ovsw_numerics. These functions cannot fail; for NULL they return 0 or NULL.
 *
 * Threads: any, at any time before ovsw_close. */
OVSW_API size_t ovsw_input_channels(const ovsw_model* model);
OVSW_API size_t ovsw_input_height(const ovsw_model* model);
OVSW_API size_t ovsw_input_width(const ovsw_model* model);
OVSW_API size_t ovsw_output_count(const ovsw_model* model); /* numbers per image, of all outputs together */
OVSW_API size_t ovsw_threads(const ovsw_model* model);

/* The bytes that options.memory_limit limits: packed weights, border corrections, and for one call of ovsw_run_* the
 * maps, the scratch memory of each thread, and the arrays of the caller (an image as float, twice the logits). Calls
 * that run at the same time have maps and scratch of their own, each as much again. */
OVSW_API size_t ovsw_memory(const ovsw_model* model);

/* Channels, height and width of an output. Most networks have one output of 1 x 1 with a channel per class. NULL if
 * there is no such output. */
OVSW_API const size_t* ovsw_output_shape(const ovsw_model* model, size_t index);

/* The name of a channel of the first output; NULL if the file has no names or there is no such channel. */
OVSW_API const char* ovsw_label(const ovsw_model* model, size_t index);

/* The metadata of the file: a JSON object, described in docs/format.md. */
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
 * undefined. The outputs of a network with several are written one after another, a map as [row][column][channel].
 *
 * Pixels are [image][row][column][channel], as decoders give them. Values are [image][channel][row][column], already
 * normalised, without NaN and infinity. Neither they nor the logits need to be aligned.
 *
 * Threads: any, also several at once. Each call has its own memory and worker threads, which the model keeps for later
 * calls. */
OVSW_API ovsw_status ovsw_run_pixels(ovsw_model* model, size_t images, const uint8_t* pixels, size_t pixel_count,
                                     float* logits, size_t logit_count);
OVSW_API ovsw_status ovsw_run_values(ovsw_model* model, size_t images, const float* values, size_t value_count,
                                     float* logits, size_t logit_count);

#ifdef __cplusplus
}
#endif

#endif
