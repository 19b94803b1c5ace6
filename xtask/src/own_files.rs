//! Makes tests wait for their own file systems only.
//!
//! `sync(2)` waits for every mounted file system of the machine. Programs that tests start call
//! `sync(2)` (sgdisk, stress-ng), so one hanging file system would hang the tests. A filter of
//! system calls (seccomp) makes `sync(2)` succeed at once in this process and in all processes that
//! it starts. Calls about a single file or file system are unchanged.
//!
//! Installing the filter needs root; without root there is no filter. The alternative,
//! `no_new_privs`, would take the set-user-id bit from fusermount3.

/// After this call, `sync(2)` returns success without syncing, if the system allows it.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn ignore_sync() {
    const ARCHITECTURE_X86_64: u32 = 0xc000_003e;
    const OFFSET_OF_NUMBER: u32 = 0;
    const OFFSET_OF_ARCHITECTURE: u32 = 4;
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, when_equal, otherwise, value| libc::sock_filter {
        code,
        jt: when_equal,
        jf: otherwise,
        k: value,
    };
    let Ok(sync) = u32::try_from(libc::SYS_sync) else {
        return;
    };
    let mut filter = [
        step(LOAD_WORD, 0, 0, OFFSET_OF_ARCHITECTURE),
        step(JUMP_IF_EQUAL, 0, 3, ARCHITECTURE_X86_64),
        step(LOAD_WORD, 0, 0, OFFSET_OF_NUMBER),
        step(JUMP_IF_EQUAL, 0, 1, sync),
        // The error number 0: the call returns success.
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 6,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its filter are live for the call, which copies both. `len` is the
    // number of steps.
    let answer = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    if answer != 0 {
        println!("sync(2) of programs that tests start waits for all file systems: the filter needs root");
    }
}

/// Does nothing: this system has no such filter.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn ignore_sync() {}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn sync_of_a_program_returns_at_once_and_syncfs_works() {
        // A filter belongs to a thread and to all that the thread starts, so the test uses a
        // separate thread.
        let ended = std::thread::spawn(|| {
            ignore_sync();
            let folder = tempfile::tempdir().unwrap();
            let run = |words: &[&str]| {
                let mut command = std::process::Command::new("sync");
                command.args(words).current_dir(folder.path());
                command.status().unwrap().success()
            };
            (run(&[]), run(&["-f", "."]))
        });
        assert_eq!(ended.join().unwrap(), (true, true));
    }
}
