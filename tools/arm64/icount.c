// A plugin for qemu-user that counts executed aarch64 instructions exactly (plugin interface version 1: qemu 7.2).
//     QEMU_PLUGIN=icount.so,out=FILE qemu-aarch64 PROGRAM
// Counts what runs between the hints #100 and #101 (marks.c). FILE receives one line per
//     region TOTAL                     in the order of execution
//     block PC COUNT WORD:MNEMONIC...  executed in the last region
//     map LINE                         of /proc/self/maps, to name the functions (count.py)
//     threads N                        that ever ran: with more than one the counts would not be exact
// One inline 64-bit addition per translated block is all that the guest is slowed down by.

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The part of the plugin interface that is used here; Debian has no package with its header.
typedef uint64_t PluginId;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*VcpuCallback)(PluginId, unsigned vcpu);
typedef void (*ExecCallback)(unsigned vcpu, void* data);
typedef void (*TranslateCallback)(PluginId, struct qemu_plugin_tb*);
typedef void (*ExitCallback)(PluginId, void* data);
enum { kNoRegisters = 0, kInlineAdd = 0 };
void qemu_plugin_register_vcpu_init_cb(PluginId, VcpuCallback);
void qemu_plugin_register_vcpu_tb_trans_cb(PluginId, TranslateCallback);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, int op, void* counter, uint64_t add);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn*, ExecCallback, int flags, void* data);
void qemu_plugin_register_atexit_cb(PluginId, ExitCallback, void* data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb*);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
char* qemu_plugin_insn_disas(const struct qemu_plugin_insn*);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
__attribute__((visibility("default"))) int qemu_plugin_install(PluginId, const void* info, int argc, char** argv);

// A block that is translated again (another mapping at the same address, or a flushed cache) becomes a new one here.
typedef struct Block {
  struct Block* next;
  uint64_t pc, count, base, in_region;
  size_t size;
  uint32_t* words;
  char** names;
} Block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block* blocks;
static const char* path;
static int threads;
static uint64_t regions[4096];
static int region_count;
static bool counting;

static uint32_t hint(uint32_t number) { return 0xd503201fu | number << 5; }

// Both markers are executed after their own block was counted: a region has the end's block and not the beginning's.
static void on_begin(unsigned vcpu, void* data) {
  (void)vcpu, (void)data;
  pthread_mutex_lock(&lock);
  for (Block* b = blocks; b; b = b->next) b->base = b->count, b->in_region = 0;
  counting = true;
  pthread_mutex_unlock(&lock);
}

static void on_end(unsigned vcpu, void* data) {
  (void)vcpu, (void)data;
  pthread_mutex_lock(&lock);
  if (counting && region_count < 4096) {
    uint64_t total = 0;
    for (Block* b = blocks; b; b = b->next) {
      b->in_region = b->count - b->base;
      total += b->in_region * b->size;
    }
    regions[region_count++] = total;
  }
  counting = false;
  pthread_mutex_unlock(&lock);
}

static void on_translate(PluginId id, struct qemu_plugin_tb* tb) {
  (void)id;
  Block* b = calloc(1, sizeof *b);
  if (!b) abort();
  b->pc = qemu_plugin_tb_vaddr(tb);
  b->size = qemu_plugin_tb_n_insns(tb);
  b->words = calloc(b->size, sizeof *b->words);
  b->names = calloc(b->size, sizeof *b->names);
  if (!b->words || !b->names) abort();
  for (size_t i = 0; i < b->size; ++i) {
    struct qemu_plugin_insn* insn = qemu_plugin_tb_get_insn(tb, i);
    memcpy(&b->words[i], qemu_plugin_insn_data(insn), 4);
    char* text = qemu_plugin_insn_disas(insn);
    b->names[i] = text ? strndup(text, strcspn(text, " \t")) : strdup("?");
    free(text);
    if (b->words[i] == hint(100)) qemu_plugin_register_vcpu_insn_exec_cb(insn, on_begin, kNoRegisters, NULL);
    if (b->words[i] == hint(101)) qemu_plugin_register_vcpu_insn_exec_cb(insn, on_end, kNoRegisters, NULL);
  }
  pthread_mutex_lock(&lock);
  b->next = blocks;
  blocks = b;
  pthread_mutex_unlock(&lock);
  qemu_plugin_register_vcpu_tb_exec_inline(tb, kInlineAdd, &b->count, 1);
}

static void on_thread(PluginId id, unsigned vcpu) {
  (void)id, (void)vcpu;
  __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
}

static void on_exit_(PluginId id, void* data) {
  (void)id, (void)data;
  FILE* f = fopen(path, "w");
  if (!f) return;  // count.py misses the file
  for (int i = 0; i < region_count; ++i) fprintf(f, "region %llu\n", (unsigned long long)regions[i]);
  for (Block* b = blocks; b; b = b->next) {
    if (!b->in_region) continue;
    fprintf(f, "block %llx %llu", (unsigned long long)b->pc, (unsigned long long)b->in_region);
    for (size_t i = 0; i < b->size; ++i) fprintf(f, " %x:%s", b->words[i], b->names[i]);
    fputc('\n', f);
  }
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[4096];
  while (maps && fgets(line, sizeof line, maps))
    if (strchr(line, '/')) fprintf(f, "map %s", line);
  if (maps) fclose(maps);
  fprintf(f, "threads %d\n", threads);
  fclose(f);
}

int qemu_plugin_install(PluginId id, const void* info, int argc, char** argv) {
  (void)info;
  for (int i = 0; i < argc; ++i)
    if (!strncmp(argv[i], "out=", 4)) path = strdup(argv[i] + 4);
  if (!path) {
    fprintf(stderr, "icount: needs out=FILE\n");
    return 1;
  }
  qemu_plugin_register_vcpu_init_cb(id, on_thread);
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
  qemu_plugin_register_atexit_cb(id, on_exit_, NULL);
  return 0;
}
