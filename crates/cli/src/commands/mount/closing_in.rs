//! The server of a mount closes itself in once it has all that it needs: an image that it serves may be anybody's.
//!
//! When its devices, its log, its socket and `/dev/fuse` are open and the mount is there, it needs no other file, connection or program. A filter
//! of system calls, for all of its threads and for good, refuses them with `EPERM`: opening, making, renaming and removing files,
//! sockets and connections, programs, mounts, other processes' memory, and whatever gets around such refusals
//! (handles of files, rings that open, keys, namespaces). No rights come back by programs that have them.
//!
//! A list of what is refused, and not of what is allowed: a call that nobody thought of must not end in a commit that fails. What it leaves
//! out: reading and writing what is open, threads, memory, signals to itself, looking (`stat(2)`), by which the server finds what a descriptor
//! of a caller's leads to.
//!
//! Unmounting is left to the process that watches ([`super::watch`]), which has its rights still.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};

/// What is refused, on every architecture.
const REFUSED: [i64; 74] = [
    // Files by name, and by what stands for a name.
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
    // Sockets and connections.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_connect,
    // Programs, and other processes.
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
    // Users and rights.
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setgid,
    libc::SYS_setresgid,
    libc::SYS_capset,
    // The system.
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
];

/// What some architectures have besides.
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
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// Closes this process in.
///
/// # Errors
/// That the system has no such filters, or not for this architecture.
pub(super) fn close_in() -> Result<()> {
    let refused = REFUSED.iter().chain(OLDER).map(|number| (*number, Vec::new()));
    let rules: BTreeMap<i64, _> = refused.collect();
    let refusal = u32::try_from(libc::EPERM)?;
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(refusal),
        std::env::consts::ARCH.try_into().context("this architecture")?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter_all_threads(&program)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{ErrorKind, Read as _};
    use std::process::Command;

    const VARIABLE: &str = "BUTTRESS_TEST_CLOSED_IN";

    /// What a process that is closed in can do and cannot; run in a process of its own, for there is no way back.
    fn tried() {
        let mut open = File::open("/proc/self/exe").unwrap();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let older = std::thread::spawn(move || {
            gone.recv().unwrap();
            File::open("/etc/hostname")
                .map(drop)
                .map_err(|error| error.kind())
        });
        close_in().unwrap();
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
        // What is open stays so.
        let mut bytes = [0; 4];
        open.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"\x7fELF");
        assert!(std::fs::metadata("/etc").is_ok());
        let large = vec![1_u8; 16 << 20];
        assert_eq!(large.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 16 << 20);
    }

    #[test]
    fn nothing_can_be_opened_from_inside() {
        if std::env::var_os(VARIABLE).is_some() {
            tried();
            // The harness would open files.
            std::process::exit(77);
        }
        let name = "commands::mount::closing_in::tests::nothing_can_be_opened_from_inside";
        let ran = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(VARIABLE, "1")
            .output()
            .unwrap();
        assert_eq!(
            ran.status.code(),
            Some(77),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}
