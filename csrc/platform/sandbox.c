#include "platform/sandbox.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && __has_include(<linux/landlock.h>)

#include "platform/platform_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Files: Landlock ---------------------------------------------------------------------------------------------------*/

#define READ_RIGHTS (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
/* All rights of the first version: execute is bit 0, make_sym bit 12. Later ones: refer (2), truncate (3), device ioctl (5). */
#define FIRST_RIGHTS ((1ull << 13) - 1)
#define REFER_RIGHT (1ull << 13)
#define TRUNCATE_RIGHT (1ull << 14)
#define DEVICE_RIGHT (1ull << 15)

static long landlock_version(void) {
  return syscall(SYS_landlock_create_ruleset, NULL, (size_t)0, LANDLOCK_CREATE_RULESET_VERSION);
}

/* Allows `rights` below a path. A file gets only those rights that exist for files. Returns true if the path does not exist. */
static bool allow(int rules, const char *path, uint64_t rights) {
  int fd = ane_fd_open(AT_FDCWD, path, O_PATH, 0);
  if (fd < 0) return errno == ENOENT || errno == ENOTDIR;
  if (ane_path_kind(path) != 'd') rights &= LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | TRUNCATE_RIGHT;
  struct landlock_path_beneath_attr rule = {.allowed_access = rights, .parent_fd = fd};
  bool ok = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
  close(fd);
  return ok;
}

static ane_status restrict_files(const struct ane_sandbox *s, long version, struct ane_error *err) {
  uint64_t all =
      FIRST_RIGHTS | (version >= 2 ? REFER_RIGHT : 0) | (version >= 3 ? TRUNCATE_RIGHT : 0) | (version >= 5 ? DEVICE_RIGHT : 0);
  struct landlock_ruleset_attr handled = {.handled_access_fs = all};
  int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);
  if (rules < 0) return ane_fail(err, ANE_IO, "sandbox: no rules for files: %s", strerror(errno));
  const char *bad = NULL;
  for (size_t i = 0; !bad && i < s->n_reads; i++)
    if (!allow(rules, s->reads[i], READ_RIGHTS)) bad = s->reads[i];
  for (size_t i = 0; !bad && i < s->n_writes; i++)
    if (!allow(rules, s->writes[i], all & ~(uint64_t)(LANDLOCK_ACCESS_FS_EXECUTE | DEVICE_RIGHT))) bad = s->writes[i];
  ane_status st = ANE_OK;
  if (bad)
    st = ane_fail(err, ANE_IO, "sandbox: %s cannot be allowed: %s", bad, strerror(errno));
  else if (syscall(SYS_landlock_restrict_self, rules, 0) != 0)
    st = ane_fail(err, ANE_IO, "sandbox: files cannot be restricted: %s", strerror(errno));
  close(rules);
  return st;
}

/* ---- System calls: seccomp ---------------------------------------------------------------------------------------------*/

#ifdef __x86_64__
#define THIS_ARCH AUDIT_ARCH_X86_64
#else
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

#ifndef SYS_pidfd_getfd /* Linux 5.6; the C library may be older than the kernel */
#define SYS_pidfd_getfd 438
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define REFUSE RETURN(SECCOMP_RET_ERRNO | EPERM)
#define REFUSE_CALL(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), REFUSE

/* LOAD reads 32 bits. Of a 64-bit argument these are the low ones, since both systems are little endian. A filter cannot see the
 * flags of clone3, which are in memory. So clone3 fails with ENOSYS, and the C library uses clone, which may only start
 * threads. */
static ane_status restrict_calls(struct ane_error *err) {
  struct sock_filter code[] = {
      LOAD(arch),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0),
      RETURN(SECCOMP_RET_KILL_PROCESS),
      LOAD(nr),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), /* the x32 calls of x86 */
      REFUSE,
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      RETURN(SECCOMP_RET_ERRNO | ENOSYS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
      LOAD(args[0]),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
      RETURN(SECCOMP_RET_ALLOW),
      REFUSE,
      /* These write to the input of a terminal, as if its user had typed a command. */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 5),
      LOAD(args[1]),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TIOCSTI, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TIOCLINUX, 0, 1),
      REFUSE,
      RETURN(SECCOMP_RET_ALLOW),
#ifdef __x86_64__
      REFUSE_CALL(fork),
      REFUSE_CALL(vfork),
#endif
      REFUSE_CALL(execve),
      REFUSE_CALL(execveat),
      REFUSE_CALL(socket),
      REFUSE_CALL(socketpair),
      REFUSE_CALL(connect),
      REFUSE_CALL(bind),
      REFUSE_CALL(listen),
      REFUSE_CALL(accept),
      REFUSE_CALL(accept4),
      REFUSE_CALL(ptrace),
      REFUSE_CALL(process_vm_readv),
      REFUSE_CALL(process_vm_writev),
      REFUSE_CALL(pidfd_getfd),
      REFUSE_CALL(kill),
      REFUSE_CALL(tkill),
      REFUSE_CALL(open_by_handle_at),
      REFUSE_CALL(unshare),
      REFUSE_CALL(setns),
      REFUSE_CALL(mount),
      REFUSE_CALL(bpf),
      REFUSE_CALL(perf_event_open),
      REFUSE_CALL(io_uring_setup),
      REFUSE_CALL(userfaultfd),
      REFUSE_CALL(add_key),
      REFUSE_CALL(keyctl),
      RETURN(SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = ANE_COUNT(code), .filter = code};
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0) return ANE_OK;
  return ane_fail(err, ANE_IO, "sandbox: system calls cannot be restricted: %s", strerror(errno));
}

ane_status ane_sandbox_enter(const struct ane_sandbox *s, struct ane_error *err) {
  long version = landlock_version();
  if (version < 1)
    return ane_fail(err, ANE_UNSUPPORTED, "sandbox: the kernel has no Landlock, or it is switched off (%s)", strerror(errno));
  uint32_t action = SECCOMP_RET_ERRNO;
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0)
    return ane_fail(err, ANE_UNSUPPORTED, "sandbox: the kernel has no seccomp filters (%s)", strerror(errno));
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return ane_fail(err, ANE_UNSUPPORTED, "sandbox: rights cannot be given up (%s)", strerror(errno));
  ane_status st = restrict_files(s, version, err);
  return st ? st : restrict_calls(err);
}

#else

ane_status ane_sandbox_enter(const struct ane_sandbox *s, struct ane_error *err) {
  (void)s;
  return ane_fail(err, ANE_UNSUPPORTED, "sandbox: only on Linux on x86-64 and AArch64, built with the headers of Landlock");
}

#endif
