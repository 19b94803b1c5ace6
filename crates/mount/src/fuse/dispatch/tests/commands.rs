//! Control commands: on read-only mounts, of callers without rights, and long ones.

use super::{NEW, Served, WRITE};
use crate::fuse::dispatch::Server;
use crate::fuse::notify::{Later, Notifier, Then, forget_first};
use crate::fuse::wire::{IN_HEADER, Output, operation};
use crate::vfs::{
    Answered, Caller, Changes, Control, Errno, HandleId, NewKind, NodeId, Opened, ReadHow, Result, Stale,
    Vfs as _,
};
use buttress::{AccessPolicy, AccessTimes, Progress, Timestamp};
use std::io::{PipeReader, pipe};
use std::sync::Arc;

/// Numbers of commands.
const SUBVOL_CREATE: u32 = 0x5000_940e;
const GET_FSLABEL: u32 = 0x8100_9431;
const SYNC: u32 = 0x0000_9408;
const INO_LOOKUP_USER: u32 = 0xd000_943e;
const SHUTDOWN: u32 = 0x8004_587d;

/// A user without the rights of root.
const STRANGER: Caller = Caller {
    uid: 4711,
    gid: 4711,
    pid: 1,
};
const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// Returns the argument of SUBVOL_CREATE: a descriptor and a name.
fn create_argument(name: &str) -> Vec<u8> {
    let mut argument = vec![0; 4096];
    argument[8..8 + name.len()].copy_from_slice(name.as_bytes());
    argument
}

impl Served {
    fn command(&self, node: NodeId, command: u32, input: &[u8], caller: Caller) -> Result<Answered> {
        let control = Control {
            command,
            input,
            output_bytes: 4096,
            argument: 0,
            caller,
            progress: &Progress::new(),
        };
        self.mounted.control(node, &control)
    }
}

#[test]
fn read_only_remount_stops_access_times_and_commands() {
    let served = Served::new();
    let remount = |is_read_only| {
        let policy = AccessPolicy {
            times: AccessTimes::Strict,
            without_directories: false,
        };
        served.mounted.set_remounted(policy, is_read_only);
    };
    let (_, node, handle) = served.file("file", 1, WRITE);
    let root = served.mounted.root();
    let read = |handle: HandleId| {
        let file = Opened::Handle(handle);
        served
            .mounted
            .read(file, 0, &mut [0; 10], ReadHow::Direct)
            .unwrap();
        served
            .mounted
            .read(file, 0, &mut [0; 10], ReadHow::Cached)
            .unwrap();
        served.mounted.list(Opened::Node(root), 0, 10).unwrap();
    };
    let accessed = || [node, root].map(|node| served.mounted.attributes(node).unwrap().metadata.accessed);
    remount(true);
    let before = accessed();
    read(handle);
    assert_eq!(accessed(), before);
    let create = |name| served.command(root, SUBVOL_CREATE, &create_argument(name), ROOT);
    assert_eq!(create("subvolume").unwrap_err(), Errno::ROFS);
    served.command(root, GET_FSLABEL, &[], ROOT).unwrap();
    served.command(root, SYNC, &[], ROOT).unwrap();
    remount(false);
    create("subvolume").unwrap();
    read(handle);
    assert_ne!(accessed(), before);
}

#[test]
fn lookup_of_subvolume_names_needs_rights_on_each_directory() {
    let served = Served::new();
    let root = served.mounted.root();
    let make = |directory, name: &str, mode| {
        let new = crate::vfs::NewNode { mode, ..NEW };
        let made = served
            .mounted
            .make(directory, name.as_bytes(), &new, NewKind::Directory);
        made.unwrap()
    };
    for (mode, expected) in [(0o700, Err(Errno::ACCES)), (0o755, Ok(()))] {
        let outer = make(root, &format!("outer{mode:o}"), mode);
        let inner = make(outer.node, "inner", 0o755);
        served
            .command(inner.node, SUBVOL_CREATE, &create_argument("hidden"), ROOT)
            .unwrap();
        served.mounted.sync_all().unwrap();
        let child = served.mounted.lookup(inner.node, b"hidden").unwrap();
        let mut argument = vec![0; 4096];
        let directory = inner.metadata.location.inode.get();
        argument[..8].copy_from_slice(&directory.to_ne_bytes());
        let id = child.metadata.location.subvolume.get();
        argument[8..16].copy_from_slice(&id.to_ne_bytes());
        let ask = |caller| served.command(root, INO_LOOKUP_USER, &argument, caller).map(drop);
        assert_eq!(ask(STRANGER), expected);
        ask(ROOT).unwrap();
    }
}

/// Returns the bytes of a request for a command.
fn request_for(command: u32) -> Vec<u8> {
    let mut request = Output::default();
    request
        .u32(u32::try_from(IN_HEADER + 32).unwrap())
        .u32(operation::IOCTL)
        .u64(1)
        .u64(1)
        .zeros(IN_HEADER - 24)
        .zeros(12)
        .u32(command)
        .zeros(12)
        .u32(4);
    request.body
}

/// Runs the notifier thread of a server, and sends it these messages.
fn notify(server: &Server, messages: Vec<Later>, until: impl FnOnce()) -> PipeReader {
    let (answers, device) = pipe().unwrap();
    let notifier = Arc::new(Notifier::new(&device, server.root()).unwrap());
    let (later, waiting) = crossbeam_channel::unbounded();
    std::thread::scope(|scope| {
        scope.spawn(move || forget_first(scope, server, &notifier, &waiting).unwrap());
        for message in messages {
            later.send(message).unwrap();
        }
        drop(later);
        until();
    });
    answers
}

/// The command waits until the notifier has completed the message behind it.
#[test]
fn long_command_does_not_block_later_answers() {
    let served = Served::new();
    let (go_on, waits) = crossbeam_channel::bounded(1);
    let (told, tells) = crossbeam_channel::bounded(1);
    served.mounted.peeks_by(Arc::new(move |_, _| {
        let limit = core::time::Duration::from_secs(20);
        told.send(waits.recv_timeout(limit).is_ok()).unwrap();
        Some(2)
    }));
    let messages = vec![
        Later::after(Vec::new(), Then::Respond(request_for(SHUTDOWN))),
        Later::after(Vec::new(), Then::GoOn(go_on)),
    ];
    drop(notify(&served.server, messages, || {
        assert!(tells.recv().unwrap(), "the message waited for the command");
    }));
    assert!(served.mounted.is_down());
}

/// FUSE invalidates no attributes after a command.
#[test]
fn defragmentation_makes_the_kernel_drop_the_space_of_the_file() {
    const DEFRAG: u32 = 0x5000_9402;
    let served = Served::new();
    let (_, node, handle) = served.file("file", 1, WRITE);
    let answered = served.command(node, DEFRAG, &[0; 4096], ROOT).unwrap();
    assert_eq!(answered.stale, [Stale::Attributes(node)]);
    // A commit may come late, and changes the space of a file with dirty content.
    served.mounted.write(handle, 0, &[2; 4096], false, false).unwrap();
    let long_ago = Changes {
        changed: Some(Timestamp::default()),
        ..Changes::default()
    };
    let shown = served.mounted.change(node, &long_ago).unwrap();
    assert_eq!(shown.lasts_s, 1);
}
