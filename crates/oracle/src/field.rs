//! Debian's programs that use a file system hard and detect its errors, with the script of each for
//! a directory.
//!
//! Each program verifies its own writes, or another program does so afterwards.

use std::path::Path;
use std::process::Command;

/// A program with its script.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The program's name for reports.
    pub name: &'static str,
    /// The programs that must be installed.
    pub needs: &'static [&'static str],
    /// A script for `sh -e` in an empty directory. `$SECONDS_EACH` and `$MIB` set the time and the
    /// size, if the program takes them.
    pub script: &'static str,
}

/// All programs.
pub const PROGRAMS: [Program; 11] = [
    Program {
        name: "fio-buffered",
        needs: &["fio"],
        script: "fio --name=buffered --directory=. --rw=randwrite --bsrange=512-128k --bs_unaligned=1 --size=${MIB}M --numjobs=2 \
                 --ioengine=psync --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting",
    },
    Program {
        name: "fio-direct",
        needs: &["fio"],
        script: "fio --name=direct --directory=. --rw=randwrite --bsrange=4k-128k --size=${MIB}M --numjobs=2 --ioengine=libaio \
                 --iodepth=16 --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting",
    },
    Program {
        name: "fio-mmap",
        needs: &["fio"],
        script: "fio --name=mapped --directory=. --rw=randwrite --bs=4k --size=${MIB}M --numjobs=2 --ioengine=mmap --verify=crc32c \
                 --verify_fatal=1 --do_verify=1 --group_reporting",
    },
    Program {
        name: "stress-ng",
        needs: &["stress-ng", "strace"],
        // Some stressors call sync(2), which waits for every file system of the machine and blocks
        // on a hanging one. sync(2) sends no request to a FUSE server. Under this strace, sync(2)
        // returns at once.
        script: "strace -f -qqq --seccomp-bpf -o /dev/null -e trace=sync -e inject=sync:retval=0 \
                 stress-ng --temp-path . --verify --timeout ${SECONDS_EACH} --hdd 1 --hdd-bytes ${MIB}m --dir 1 --dirdeep 1 --rename 1 \
                 --link 1 --symlink 1 --xattr 1 --seek 1 --filename 1 --chmod 1 --chown 1 --utime 1 --fallocate 1 \
                 --fallocate-bytes ${MIB}m --flock 1 --lockf 1 --dentry 1 --dentries 200 --getdent 1 --copy-file 1 \
                 --copy-file-bytes 128m --fpunch 1 --open 1 --touch 1 --sync-file 1 --sync-file-bytes ${MIB}m --mknod 1",
    },
    Program {
        name: "dbench",
        needs: &["dbench"],
        script: "dbench --directory . --timelimit ${SECONDS_EACH} --sync 4",
    },
    Program {
        name: "fs_mark",
        needs: &["fs_mark"],
        script: "fs_mark -d . -t 4 -n $((MIB * 20)) -s 4096 -S 1 -v",
    },
    Program {
        name: "postmark",
        needs: &["postmark"],
        script: "printf 'set number %d\\nset transactions %d\\nset location .\\nrun\\nquit\\n' $((MIB * 40)) $((MIB * 80)) | postmark",
    },
    Program {
        name: "sqlite3",
        needs: &["sqlite3"],
        script: "for mode in delete truncate persist wal; do\n\
                 i=0\n\
                 { echo \"pragma journal_mode=$mode; pragma synchronous=full; create table t (a integer primary key, b text);\"\n\
                   while [ $i -lt $((MIB * 4)) ]; do echo \"insert into t values ($i, hex(randomblob(200)));\"; i=$((i + 1)); done\n\
                   echo 'update t set b = hex(randomblob(300)) where a % 3 = 0; delete from t where a % 5 = 0; vacuum;'\n\
                 } | sqlite3 $mode.db > /dev/null\n\
                 test \"$(sqlite3 $mode.db 'pragma integrity_check')\" = ok\n\
                 test \"$(sqlite3 $mode.db 'select count(*) from t')\" = $((MIB * 4 - (MIB * 4 + 4) / 5))\n\
                 done",
    },
    Program {
        name: "git",
        needs: &["git"],
        script: "git init -q -b main origin; cd origin; git config user.name a; git config user.email a@localhost; git config gc.auto 0\n\
                 i=0; while [ $i -lt $MIB ]; do\n\
                 mkdir -p d$((i % 7)); seq $i $((i + 2000)) > d$((i % 7))/f$i; git add -A; git commit -q -m $i; i=$((i + 1)); done\n\
                 cd ..; git clone -q --no-hardlinks origin clone; cd clone; git fsck --full --strict; git repack -a -d -q\n\
                 git fsck --full --strict; test -z \"$(git status --porcelain)\"",
    },
    Program {
        name: "unpacking",
        needs: &["tar"],
        script: "tar -C /usr/share -cf tree.tar perl; mkdir out; tar -C out -xf tree.tar; tar -C out -df tree.tar; cp -a out copy\n\
                 diff -r --no-dereference out copy; rm -r out",
    },
    Program {
        name: "dpkg-deb",
        needs: &["dpkg-deb"],
        script: "mkdir -p new/DEBIAN; cp -a /usr/share/perl new/; printf 'Package: new\\nVersion: 1\\nArchitecture: all\\nMaintainer: a\\n\
                 Description: a\\n' > new/DEBIAN/control\n\
                 dpkg-deb -Znone -b new new.deb; dpkg-deb -x new.deb out; diff -r --no-dereference new/perl out/perl",
    },
];

impl Program {
    /// Returns the command that runs the program in `directory`, with this time or size if the
    /// program takes it.
    #[must_use]
    pub fn command(&self, directory: &Path, seconds: u64, mib: u64) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-e", "-c", self.script])
            .current_dir(directory)
            .env("SECONDS_EACH", seconds.to_string())
            .env("MIB", mib.to_string())
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        command
    }
}
