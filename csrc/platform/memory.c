/* Pages from the system, and memory use. */
#include "platform/platform.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/resource.h>
#endif

enum { HUGE_PAGE = 2 << 20 };

static size_t page_size(void) {
  long n = sysconf(_SC_PAGESIZE);
  return n > 0 ? (size_t)n : 4096;
}

/* Lets specs that make the n-th heap allocation fail also fail page allocations. */
static bool heap_refuses(void) {
  void *probe = ane_malloc(1);
  ane_free(probe);
  return !probe;
}

void *ane_pages_alloc(size_t size, bool huge) {
  size_t page = page_size();
  if (size > SIZE_MAX / 2 || heap_refuses()) return NULL;
  size = ane_align_up(size ? size : 1, page);
  /* Huge pages need aligned ranges: map more, then unmap both ends. */
  size_t slack = huge && size >= HUGE_PAGE ? HUGE_PAGE - page : 0;
  char *p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  if (slack) {
    size_t head = (size_t)(-(uintptr_t)p & (HUGE_PAGE - 1));
    if (head) munmap(p, head);
    if (slack > head) munmap(p + head + size, slack - head);
    p += head;
  }
#ifdef MADV_HUGEPAGE
  if (slack) madvise(p, size, MADV_HUGEPAGE);
#endif
  return p;
}

void ane_pages_free(void *p, size_t size) {
  if (p) munmap(p, ane_align_up(size ? size : 1, page_size()));
}

void ane_pages_drop(void *p, size_t size) {
  const uintptr_t page = page_size(), from = ((uintptr_t)p + page - 1) & ~(page - 1), to = ((uintptr_t)p + size) & ~(page - 1);
  if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

#ifdef __APPLE__

uint64_t ane_memory_resident(void) {
  struct mach_task_basic_info info;
  mach_msg_type_number_t n = MACH_TASK_BASIC_INFO_COUNT;
  return task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &n) == KERN_SUCCESS ? info.resident_size : 0;
}

uint64_t ane_memory_peak(void) {
  struct rusage use;
  return getrusage(RUSAGE_SELF, &use) == 0 ? (uint64_t)use.ru_maxrss : 0; /* macOS counts bytes */
}

uint64_t ane_memory_available(void) {
  vm_statistics64_data_t vm;
  mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &n) != KERN_SUCCESS) return 0;
  return ((uint64_t)vm.free_count + vm.inactive_count + vm.purgeable_count) * page_size();
}

#else

/* The number after `label`, in bytes, in a /proc file with lines "Label: 123 kB"; 0: none. */
static uint64_t proc_kb(const char *file, const char *label) {
  FILE *f = fopen(file, "re");
  if (!f) return 0;
  char line[256];
  unsigned long long kb = 0;
  size_t len = strlen(label);
  while (fgets(line, sizeof line, f))
    if (strncmp(line, label, len) == 0 && sscanf(line + len, ": %llu", &kb) == 1) break;
  fclose(f);
  return (uint64_t)kb * 1024;
}

uint64_t ane_memory_resident(void) { return proc_kb("/proc/self/status", "VmRSS"); }
/* Does not use getrusage, whose peak includes that of the program that called exec. */
uint64_t ane_memory_peak(void) { return proc_kb("/proc/self/status", "VmHWM"); }
uint64_t ane_memory_available(void) { return proc_kb("/proc/meminfo", "MemAvailable"); }

#endif
