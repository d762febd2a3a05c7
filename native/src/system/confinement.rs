//! Rights that a process drops permanently: capabilities, and system calls.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io::{Error, Result};

use caps::{CapSet, Capability, CapsHashSet};
use libc::c_long;
use seccompiler::{
    BpfProgram, BpfProgramRef, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, sock_filter,
};

/// Drops a capability in this thread, and in the threads that it starts.
pub fn give_up_capability(capability: Capability) -> Result<()> {
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        caps::drop(None, set, capability).map_err(|_| Error::last_os_error())?;
    }
    Ok(())
}

/// Drops all capabilities except `kept` in this thread, its new threads, and all programs that
/// these run. Returns whether the bounding set is limited, which requires `CAP_SETPCAP`.
///
/// Other threads of the process are unchanged.
pub fn bound_capabilities(kept: &CapsHashSet) -> Result<bool> {
    // The library returns the kernel's answer only as text.
    bound(kept).map_err(|_| Error::last_os_error())
}

fn bound(kept: &CapsHashSet) -> std::result::Result<bool, caps::errors::CapsError> {
    let is_limited = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)?;
    if is_limited {
        for capability in caps::read(None, CapSet::Bounding)?.difference(kept) {
            caps::drop(None, CapSet::Bounding, *capability)?;
        }
    }
    caps::clear(None, CapSet::Inheritable)?;
    for set in [CapSet::Effective, CapSet::Permitted] {
        let held = caps::read(None, set)?.intersection(kept).copied().collect();
        caps::set(None, set, &held)?;
    }
    Ok(is_limited)
}

/// All system calls below this number were considered for `DENIED` (Linux 6.18). A program gets the
/// answer that the kernel lacks later ones, so that it works without them.
const KNOWN_END: c_long = 470;

/// System calls that a mount process does not need while it serves.
const DENIED: &[c_long] = &[
    // Mounts. Not `umount2` and `mount_setattr`, which a mount needs for its end and its options.
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    OPEN_TREE_ATTR,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    // Namespaces. `clone` is denied with their flags.
    libc::SYS_setns,
    libc::SYS_unshare,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // The kernel.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_lookup_dcookie,
    // The machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // Keys.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Other users. Not `setfsuid`: threads use it to make changes without the reserved blocks.
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setgid,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsgid,
    // Programs and personalities. Not `execve`, which starts `stat`, `umount` and the page worker.
    libc::SYS_execveat,
    libc::SYS_personality,
    // Events of files of all users.
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
];

/// The libc crate lacks names for these two on some processors.
const OPEN_TREE_ATTR: c_long = 467;
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: c_long = 320;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: c_long = 294;

#[cfg(target_arch = "x86_64")]
const DENIED_OF_PROCESSOR: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_OF_PROCESSOR: &[c_long] = &[];

/// Flags that make `clone` create a namespace.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Denies the system calls of `DENIED` to all threads of this process, and to the programs that
/// they run: the calls fail with EPERM. Threads and programs get no new rights (`no_new_privs`).
///
/// A filter cannot see the flags of `clone3`. So `clone3` fails with ENOSYS, and the C library
/// calls `clone`.
pub fn deny_calls() -> Result<()> {
    let filters = [known()?, permitted()?];
    rustix::thread::set_no_new_privs(true)?;
    filters.iter().try_for_each(|filter| install(filter))
}

/// Allows the system calls with known numbers.
fn known() -> Result<BpfProgram> {
    let known = (0..KNOWN_END).filter(|&number| number != libc::SYS_clone3);
    let rules = known.map(|number| (number, Vec::new())).collect();
    compiled(rules, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)
}

/// Allows the system calls that are not denied.
fn permitted() -> Result<BpfProgram> {
    let denied = DENIED.iter().chain(DENIED_OF_PROCESSOR);
    let mut rules: BTreeMap<_, _> = denied.map(|&number| (number, Vec::new())).collect();
    let clones = NAMESPACES.iter().map(|&flag| {
        let flag = flag as u64;
        let masked = SeccompCmpOp::MaskedEq(flag);
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, masked, flag)?;
        SeccompRule::new(vec![condition])
    });
    let clones = clones.collect::<std::result::Result<_, _>>().map_err(|_| unsupported())?;
    rules.insert(libc::SYS_clone, clones);
    compiled(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

/// `listed`: the result of calls with a matching rule.
fn compiled(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    others: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram> {
    let processor = ARCH.try_into().map_err(|_| unsupported())?;
    let filter = SeccompFilter::new(rules, others, listed, processor);
    filter.and_then(BpfProgram::try_from).map_err(|_| unsupported())
}

/// The library has no filters for this processor.
fn unsupported() -> Error {
    Error::from_raw_os_error(libc::EOPNOTSUPP)
}

/// Installs a filter in all threads. Without `SPEC_ALLOW`, kernels before Linux 5.16 disable a part
/// of the processor's speculation for them, which is meant to confine foreign code.
fn install(filter: BpfProgramRef) -> Result<()> {
    #[repr(C)]
    struct Program {
        length: u16,
        filter: *const sock_filter,
    }
    let program = Program { length: filter.len() as u16, filter: filter.as_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the program has the layout of `sock_fprog`, and lives until the call returns.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    match result {
        0 => Ok(()),
        -1 => Err(Error::last_os_error()),
        // The result is the number of a thread that has its own filter.
        _ => Err(Error::from_raw_os_error(libc::EBUSY)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_short_enough_for_the_kernel() {
        for filter in [known(), permitted()] {
            assert!(filter.unwrap().len() < 4096);
        }
    }

    #[test]
    fn all_denied_calls_are_known() {
        for number in DENIED.iter().chain(DENIED_OF_PROCESSOR) {
            assert!((0..KNOWN_END).contains(number));
        }
    }
}
