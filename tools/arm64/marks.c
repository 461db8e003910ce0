// Markers around the part of a run that icount.c counts: hints that no CPU knows, so they do nothing.

void begin(void);
void end(void);
void next(void);

void begin(void) { __asm__ volatile("hint #100" ::: "memory"); }
void end(void) { __asm__ volatile("hint #101" ::: "memory"); }
void next(void) { __asm__ volatile("hint #101\n\thint #100" ::: "memory"); }
