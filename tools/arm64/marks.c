// Markers around the part of a run that icount.c counts: hints that no CPU knows, so they do nothing.

void begin(void);
void end(void);

void begin(void) { __asm__ volatile("hint #100" ::: "memory"); }
void end(void) { __asm__ volatile("hint #101" ::: "memory"); }
