/* CPU features, names and counts. */
#include "platform/platform.h"

#include "base/alloc.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#else
#include <sched.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

static const char *const isa_names[] = {
#define ISA_NAME(id, name) name,
    ANE_ISA_LIST(ISA_NAME)
#undef ISA_NAME
};

const char *ane_isa_name(ane_isa isa) { return (size_t)isa < ANE_COUNT(isa_names) ? isa_names[isa] : "unknown"; }

ane_isa ane_isa_from_name(const char *name) {
  int i = 0;
  while (i < ANE_ISA_COUNT && strcmp(isa_names[i], name) != 0) i++;
  return (ane_isa)i;
}

/* ---- Features ----------------------------------------------------------------------------------------------------*/

struct features {
  bool isa[ANE_ISA_COUNT];
  bool bf16_dot;
};

#ifdef __aarch64__
static struct features arm_features(bool dot, bool i8mm, bool bf16) {
  return (struct features){.isa = {[ANE_ISA_REF] = true, [ANE_ISA_NEON] = true, [ANE_ISA_DOTPROD] = dot, [ANE_ISA_I8MM] = i8mm},
                           .bf16_dot = bf16};
}
#endif

#if defined(__x86_64__) || defined(__i386__)

/* The register sets that the system saves at a context switch (XCR0, Intel SDM volume 1, 13.3). */
static uint32_t xcr0(void) {
  uint32_t lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return lo;
}

/* CPUID bits: Intel SDM volume 2, CPUID, leaves 1 and 7. */
static struct features detect(void) {
  struct features f = {.isa[ANE_ISA_REF] = true};
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  bool fma = c >> 12 & 1, osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
  uint32_t saved = osxsave ? xcr0() : 0;
  if (!avx || (saved & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  uint32_t leaves = a;
  f.isa[ANE_ISA_AVX2] = (b >> 5 & 1) && fma && f16c;
  uint32_t need = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
  f.isa[ANE_ISA_AVX512] = f.isa[ANE_ISA_AVX2] && (saved & 0xE6) == 0xE6 && (b & need) == need;
  f.isa[ANE_ISA_AVX512VNNI] = f.isa[ANE_ISA_AVX512] && (c >> 11 & 1);
  if (leaves < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return f;
  f.isa[ANE_ISA_AVXVNNI] = f.isa[ANE_ISA_AVX2] && (a >> 4 & 1);
  f.bf16_dot = f.isa[ANE_ISA_AVX512] && (a >> 5 & 1);
  return f;
}

#elif defined(__aarch64__) && defined(__APPLE__)

static bool sysctl_flag(const char *name) {
  int v = 0;
  size_t size = sizeof v;
  return sysctlbyname(name, &v, &size, NULL, 0) == 0 && v;
}

static struct features detect(void) {
  bool dot = sysctl_flag("hw.optional.arm.FEAT_DotProd") && sysctl_flag("hw.optional.arm.FEAT_FP16");
  bool i8mm = dot && sysctl_flag("hw.optional.arm.FEAT_I8MM");
  bool bf16 = i8mm && sysctl_flag("hw.optional.arm.FEAT_BF16");
  return arm_features(dot, i8mm, bf16);
}

#elif defined(__aarch64__) && defined(__linux__)

/* Bits of HWCAP (Linux, arch/arm64/include/uapi/asm/hwcap.h). */
static struct features detect(void) {
  unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
  bool dot = (cap >> 20 & 1) && (cap >> 9 & 1) && (cap >> 10 & 1); /* ASIMDDP, FPHP, ASIMDHP */
  bool i8mm = dot && (cap2 >> 13 & 1), bf16 = i8mm && (cap2 >> 14 & 1);
  return arm_features(dot, i8mm, bf16);
}

#else

static struct features detect(void) { return (struct features){.isa[ANE_ISA_REF] = true}; }

#endif

static struct features found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void) { found = detect(); }

/* Detected once: in a virtual machine each CPUID goes through the hypervisor. */
static const struct features *features(void) {
  pthread_once(&once, find);
  return &found;
}

bool ane_isa_available(ane_isa isa) { return (unsigned)isa < ANE_ISA_COUNT && features()->isa[isa]; }

ane_isa ane_isa_best(void) {
  int best = ANE_ISA_COUNT - 1;
  while (best > ANE_ISA_REF && !features()->isa[best]) best--;
  return (ane_isa)best;
}

bool ane_cpu_has_bf16_dot(void) { return features()->bf16_dot; }

bool ane_cpu_halves_512(void) {
#if defined(__x86_64__) || defined(__i386__)
  uint32_t a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || c != signature_AMD_ecx || d != signature_AMD_edx) return false;
  return __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) == 0x19; /* family 19h with AVX-512 is Zen 4 */
#else
  return false;
#endif
}

/* ---- Name --------------------------------------------------------------------------------------------------------*/

/* Copies s, trimmed; each run of blanks becomes one. */
static void copy_trimmed(char *out, size_t size, const char *s) {
  size_t n = 0;
  for (; *s && n + 1 < size; s++) {
    bool blank = *s == ' ' || *s == '\t' || *s == '\n';
    if (!blank)
      out[n++] = *s;
    else if (n && out[n - 1] != ' ')
      out[n++] = ' ';
  }
  while (n && out[n - 1] == ' ') n--;
  out[n] = '\0';
}

#if !defined(__APPLE__)
/* Reads the value of the first line "label : value" of /proc/cpuinfo. */
static void name_from_proc(char *out, size_t size, const char *label) {
  FILE *f = fopen("/proc/cpuinfo", "re");
  if (!f) return;
  char line[256];
  while (!out[0] && fgets(line, sizeof line, f)) {
    const char *colon = strchr(line, ':');
    if (colon && strncmp(line, label, strlen(label)) == 0) copy_trimmed(out, size, colon + 1);
  }
  fclose(f);
}
#endif

void ane_cpu_name(char *out, size_t size) {
  if (!size) return;
  out[0] = '\0';
#if defined(__APPLE__)
  char name[128] = {0};
  size_t len = sizeof name - 1;
  if (sysctlbyname("machdep.cpu.brand_string", name, &len, NULL, 0) == 0) copy_trimmed(out, size, name);
#else
#if defined(__x86_64__) || defined(__i386__)
  uint32_t brand[13] = {0}, top = __get_cpuid_max(0x80000000u, NULL);
  for (uint32_t i = 0; top >= 0x80000004u && i < 3; i++) {
    uint32_t *r = brand + 4 * i;
    __get_cpuid(0x80000002u + i, &r[0], &r[1], &r[2], &r[3]);
  }
  copy_trimmed(out, size, (const char *)brand);
#endif
  if (!out[0]) name_from_proc(out, size, "model name");
  if (!out[0]) name_from_proc(out, size, "Hardware");
#endif
}

/* ---- Cores -------------------------------------------------------------------------------------------------------*/

#ifdef __APPLE__

int ane_cpu_cores(void) {
  /* Counts performance cores only: a run is as slow as its slowest thread. */
  static const char *const names[] = {"hw.perflevel0.physicalcpu", "hw.physicalcpu"};
  for (size_t i = 0; i < ANE_COUNT(names); i++) {
    int n = 0;
    size_t size = sizeof n;
    if (sysctlbyname(names[i], &n, &size, NULL, 0) == 0 && n > 0) return n;
  }
  return 1;
}

int ane_cpu_logical(void) {
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n < 1 ? 1 : (int)n;
}

#else

/* The first number of a one-line file, or -1. */
static long read_number(const char *path) {
  FILE *f = fopen(path, "re");
  if (!f) return -1;
  long n;
  if (fscanf(f, "%ld", &n) != 1) n = -1;
  fclose(f);
  return n;
}

/* The lowest logical CPU of the core that `cpu` belongs to. It identifies the core. */
static long core_of(int cpu) {
  static const char *const files[] = {"core_cpus_list", "thread_siblings_list"};
  for (size_t i = 0; i < ANE_COUNT(files); i++) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, files[i]);
    long n = read_number(path);
    if (n >= 0) return n;
  }
  return cpu;
}

/* Reads the first two numbers of a file. Returns how many it found: 0 for "max" and for a missing file. */
static int read_pair(const char *path, long *a, long *b) {
  FILE *f = fopen(path, "re");
  if (!f) return 0;
  int n = fscanf(f, "%ld %ld", a, b);
  fclose(f);
  return n;
}

/* The CPUs that the cgroup in `folder` allows, quota / period (us), rounded up. Reads cpu.max of v2, or two files of v1. */
static int quota_in(const char *folder, bool v2) {
  char path[PATH_MAX];
  long quota = 0, period = 0, none;
  if (v2) {
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_pair(path, &quota, &period) < 2) return INT32_MAX;
  } else {
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (read_pair(path, &quota, &none) < 1) return INT32_MAX;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (read_pair(path, &period, &none) < 1) return INT32_MAX;
  }
  if (quota <= 0 || period <= 0) return INT32_MAX;
  return (int)ANE_MIN((quota + period - 1) / period, (long)INT32_MAX);
}

/* The smallest CPU limit of the process's cgroup and its parents. A line of /proc/self/cgroup reads "0::/group" (v2) or
 * "4:cpu,cpuacct:/group" (v1). In a container the path may be the host's, while the mount shows only the container's root. */
static int quota_cpus(void) {
  FILE *f = fopen("/proc/self/cgroup", "re");
  char line[PATH_MAX];
  int least = INT32_MAX;
  while (f && fgets(line, sizeof line, f)) {
    char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : NULL;
    if (!group) continue;
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    bool v2 = kinds[1] == '\0', cpu = false;
    char *rest;
    for (char *kind = strtok_r(kinds + 1, ",", &rest); kind; kind = strtok_r(NULL, ",", &rest)) cpu |= strcmp(kind, "cpu") == 0;
    if (!v2 && !cpu) continue;
    for (char *end;; *end = '\0') {
      char folder[PATH_MAX + 32];
      snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", v2 ? "" : "/cpu", group);
      least = ANE_MIN(least, quota_in(folder, v2));
      if (!*group || !(end = strrchr(group, '/'))) break;
    }
  }
  if (f) fclose(f);
  return least;
}

static int cpus(long (*of)(int cpu)) {
  enum { MAX_CPUS = 8192 };
  size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
  cpu_set_t *may = ane_calloc(2, size);
  if (!may) return 1;
  cpu_set_t *counted = (cpu_set_t *)((char *)may + size);
  if (sched_getaffinity(0, size, may) == 0) {
    for (int cpu = 0; cpu < MAX_CPUS; cpu++)
      if (CPU_ISSET_S(cpu, size, may)) CPU_SET_S((size_t)of(cpu), size, counted);
  }
  int n = ANE_MIN(CPU_COUNT_S(size, counted), quota_cpus());
  ane_free(may);
  if (n < 1) n = (int)sysconf(_SC_NPROCESSORS_ONLN);
  return n < 1 ? 1 : n;
}

static long itself(int cpu) { return cpu; }

int ane_cpu_cores(void) { return cpus(core_of); }
int ane_cpu_logical(void) { return cpus(itself); }

#endif
