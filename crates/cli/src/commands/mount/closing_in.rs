//! Sandbox of a mount's server, which gives up all system calls that it does not need, because its
//! image may come from anybody.
//!
//! Once its devices, its log, its socket and `/dev/fuse` are open and the mount exists, the server
//! needs no other file, connection or program. A permanent seccomp filter for all of its threads
//! refuses with `EPERM`: opening, creating, renaming and removing files, sockets and connections,
//! programs and other processes, mounts, other processes' memory, changes of the system's clock and
//! names, and calls that circumvent such refusals (handles of files, new rings, keys, namespaces).
//! Programs cannot restore any rights.
//!
//! Existing io_uring rings remain usable. The rings of devices read and write, and the rings of the
//! mount carry requests. These rings cannot do anything else, because they were restricted at their
//! creation.
//!
//! The server can still create threads with `clone(2)`, whose flags a filter can check. The flags
//! of `clone3(2)` are behind a pointer, so this call returns `ENOSYS`, and C libraries fall back to
//! `clone(2)`.
//!
//! The server of a mount neither drops root's capabilities nor uses Landlock. Linux applies both
//! restrictions only to the calling thread and its children, and the threads of the devices start
//! before the mount, which needs the rights. The filter refuses the operations that Landlock and
//! capabilities would refuse.
//!
//! The filter is a deny list, not an allow list: an unforeseen call must not make a commit fail.
//! The sandbox still allows reading and writing open files, threads, memory, signals to itself, and
//! `stat(2)` of a caller's descriptor.
//!
//! The watch process ([`super::watch`]), which is not restricted, unmounts.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

/// System calls that are refused on every architecture.
const REFUSED: &[i64] = &[
    // Files by name or by handle.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_truncate,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_memfd_create,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_chroot,
    libc::SYS_inotify_init1,
    libc::SYS_fanotify_init,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // System calls for sockets and connections.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_connect,
    // Execution of programs, and other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    // System calls about users and privileges.
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setgid,
    libc::SYS_setresgid,
    libc::SYS_setregid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    // System-wide settings.
    libc::SYS_io_uring_setup,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
];

/// Newer system calls, with numbers that all architectures share; the crate `libc` lacks some of
/// them.
const NEWER: [i64; 6] = [
    447, // memfd_secret
    452, // fchmodat2
    463, // setxattrat
    466, // removexattrat
    467, // open_tree_attr
    469, // file_setattr
];

/// Architecture-specific system calls.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_mknod,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_inotify_init,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_fork,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// System calls of x32, a second table on this architecture: the same numbers with this bit, and
/// some extra ones.
#[cfg(target_arch = "x86_64")]
const SECOND_TABLE: Option<(i64, core::ops::RangeInclusive<i64>)> = Some((0x4000_0000, 512..=547));
#[cfg(not(target_arch = "x86_64"))]
const SECOND_TABLE: Option<(i64, core::ops::RangeInclusive<i64>)> = None;

/// Returns the rules for new threads: a new thread must not be in another namespace, and must not
/// be a process.
fn refused_threads() -> Result<Vec<SeccompRule>> {
    const NAMESPACES: [libc::c_int; 8] = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_PTRACE,
    ];
    let rule = |flag: libc::c_int, is_set: bool| -> Result<SeccompRule> {
        let flag = u64::try_from(flag)?;
        let condition = SeccompCondition::new(
            0,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(flag),
            if is_set { flag } else { 0 },
        )?;
        Ok(SeccompRule::new(vec![condition])?)
    };
    let mut rules = vec![rule(libc::CLONE_THREAD, false)?];
    for flag in NAMESPACES {
        rules.push(rule(flag, true)?);
    }
    Ok(rules)
}

/// Makes the system answer these calls with an error, for all threads of this process.
fn refuse(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: libc::c_int) -> Result<()> {
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(u32::try_from(errno)?),
        std::env::consts::ARCH.try_into().context("this architecture")?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    Ok(apply_filter_all_threads(&program)?)
}

/// System calls on rings.
const RINGS: [i64; 2] = [libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
/// The only register operation allowed on existing rings: enabling them.
const ENABLE_RINGS: u64 = 12;

/// Returns the refused operations on existing rings. The rings themselves are permanently
/// restricted by their creator.
fn rules_of_rings(has_rings: bool) -> Result<Vec<(i64, Vec<SeccompRule>)>> {
    if !has_rings {
        return Ok(RINGS.map(|number| (number, Vec::new())).to_vec());
    }
    let other = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, ENABLE_RINGS)?;
    Ok(vec![(
        libc::SYS_io_uring_register,
        vec![SeccompRule::new(vec![other])?],
    )])
}

/// Installs the sandbox for this process. If `has_rings` is true, the process continues to use
/// io_uring rings.
///
/// # Errors
/// Fails if the system has no such filters, or none for this architecture.
pub(super) fn close_in(has_rings: bool) -> Result<()> {
    refuse([(libc::SYS_clone3, Vec::new())].into(), libc::ENOSYS)?;
    let refused = || REFUSED.iter().chain(OLDER).chain(&NEWER).copied();
    let mut rules: BTreeMap<i64, _> = refused().map(|number| (number, Vec::new())).collect();
    rules.insert(libc::SYS_clone, refused_threads()?);
    rules.extend(rules_of_rings(has_rings)?);
    if let Some((bit, own)) = SECOND_TABLE {
        let again = refused()
            .chain([libc::SYS_clone, libc::SYS_clone3])
            .chain(RINGS)
            .chain(own);
        rules.extend(again.map(|number| (number | bit, Vec::new())));
    }
    refuse(rules, libc::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress::unstable::device::ReadRequest;
    use buttress::{Device, DeviceEngine as Engine, DeviceOptions as OpenOptions};
    use std::fs::File;
    use std::io::{ErrorKind, Read as _};
    use std::process::Command;

    const VARIABLE: &str = "BUTTRESS_TEST_CLOSED_IN";

    /// Tests allowed and refused operations of a sandboxed process. It must run in a separate
    /// process, because the sandbox is permanent.
    fn tried(has_rings: bool) {
        let options = OpenOptions {
            engine: Engine::IoUring,
            ..OpenOptions::default()
        };
        let device = Device::open("/proc/self/exe", &options).unwrap();
        let mut open = File::open("/proc/self/exe").unwrap();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let older = std::thread::spawn(move || {
            gone.recv().unwrap();
            File::open("/etc/hostname")
                .map(drop)
                .map_err(|error| error.kind())
        });
        close_in(has_rings).unwrap();
        go.send(()).unwrap();
        let refused = Some(ErrorKind::PermissionDenied);
        assert_eq!(
            older.join().unwrap().err(),
            refused,
            "a thread that was there before"
        );
        let newer = std::thread::spawn(|| File::open("/etc/hostname").map(drop));
        assert_eq!(
            newer.join().unwrap().unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
        assert_eq!(File::create("/tmp/x").err().map(|error| error.kind()), refused);
        assert_eq!(
            std::fs::remove_file("/tmp/x").err().map(|error| error.kind()),
            refused
        );
        let connected = std::net::TcpStream::connect("127.0.0.1:9");
        assert_eq!(connected.err().map(|error| error.kind()), refused);
        let socket = std::os::unix::net::UnixDatagram::unbound();
        assert_eq!(socket.err().map(|error| error.kind()), refused);
        assert_eq!(
            Command::new("/bin/true").status().err().map(|error| error.kind()),
            refused
        );
        // Both calls set the current values, so they would change nothing if the filter allowed
        // them.
        let clock = rustix::time::ClockId::Realtime;
        let set = rustix::time::clock_settime(clock, rustix::time::clock_gettime(clock));
        assert_eq!(set.err(), Some(rustix::io::Errno::PERM), "the system's clock");
        let name = rustix::system::uname().nodename().to_bytes().to_vec();
        let named = rustix::system::sethostname(&name);
        assert_eq!(named.err(), Some(rustix::io::Errno::PERM), "the system's name");
        // The sandbox does not affect files that are already open.
        let mut bytes = [0; 4];
        open.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"\x7fELF");
        // The read uses the io_uring ring, or falls back if rings are refused.
        let read = device.start_reads([ReadRequest {
            offset_bytes: 0,
            length: 4096,
        }]);
        let read = read.into_iter().next().unwrap().wait().unwrap();
        assert_eq!(&read[..4], b"\x7fELF");
        assert!(std::fs::metadata("/etc").is_ok());
        let large = vec![1_u8; 16 << 20];
        assert_eq!(large.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 16 << 20);
    }

    #[test]
    fn nothing_can_be_opened_from_inside() {
        if let Some(rings) = std::env::var_os(VARIABLE) {
            tried(rings == "rings");
            // Exit now, because the test harness would open files.
            std::process::exit(77);
        }
        let name = "commands::mount::closing_in::tests::nothing_can_be_opened_from_inside";
        for rings in ["rings", "none"] {
            let ran = Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact", "--nocapture"])
                .env(VARIABLE, rings)
                .output()
                .unwrap();
            assert_eq!(
                ran.status.code(),
                Some(77),
                "{rings}: {}",
                String::from_utf8_lossy(&ran.stderr)
            );
        }
    }
}
