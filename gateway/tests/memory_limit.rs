//! A gateway in a control group with a memory limit, as in a container.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use crate::common::*;

/// The limit of a LimitRange.
const LIMIT: u64 = 64 << 20;
/// Number of streams whose targets stop reading.
const STREAMS: usize = 600;
/// How often each target reads before that.
const ROUNDS: usize = 10;

/// A control group with a memory limit, which is removed on drop.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("muxgate-{}", std::process::id());
        // Version 2, or version 1.
        let (folder, file) = match root.join("cgroup.controllers").exists() {
            true => {
                // An error means that the controller is enabled already, or that the next write
                // fails.
                let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
                (root.join(name), "memory.max")
            }
            false => (root.join("memory").join(name), "memory.limit_in_bytes"),
        };
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(file), limit.to_string()).unwrap();
        Self(folder)
    }

    /// The number of processes that the kernel has killed for lack of memory.
    fn killed(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"];
        let texts = files.map(|file| std::fs::read_to_string(self.0.join(file)));
        let texts = texts.into_iter().flatten().collect::<String>();
        let line = texts.lines().find(|line| line.starts_with("oom_kill "));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group of a process that has just ended may be busy for a moment.
        until("the group is removed", || {
            std::fs::remove_dir(&self.0).is_ok()
        });
    }
}

/// Fills the stream until its sender gets no credit.
fn fill(mut client: &TcpStream) {
    client.set_nonblocking(true).unwrap();
    let bytes = [1; 64 << 10];
    loop {
        match client.write(&bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads what has arrived.
fn drain(mut target: &TcpStream) {
    target.set_nonblocking(true).unwrap();
    let mut bytes = [0; 64 << 10];
    for _ in 0..32 {
        match target.read(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn slow_targets_do_not_use_more_memory_than_the_gateway_may_have() {
    let group = Group::new(LIMIT);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let (carrier, forward) = (free_port(), free_port());
    let both = "protocol: Native\nsecurity: {mode: None}\nadmin: ADMIN\nworkers: 1\npool: {min: 1, max: 1}\n";
    let exit = both.replace("pool: {min: 1, max: 1}\n", "");
    let exit = Gate::in_group(
        &group.0,
        &format!("role: Exit\n{exit}memory: {{stallSeconds: 0}}\nlisten: 127.0.0.1:{carrier}\nallow: [{target_rule}]\n", target_rule = crate::common::rule(target)),
    )
    .until_ready();
    exit.line(&["Sessions share a part of the memory limit", "64Mi"]);
    let entry = Gate::with_file(&format!(
        "role: Entry\n{both}connect:\n- name: far\n  address: 127.0.0.1:{carrier}\nforwards:\n\
         - {{name: web, listen: '127.0.0.1:{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        target.port()
    ))
    .until_ready();
    let forward = SocketAddr::from(([127, 0, 0, 1], forward));
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| (connect(forward), accept(&listener)))
        .collect();
    // While the targets read, the windows of the streams grow.
    for _ in 0..ROUNDS {
        for (client, target) in &streams {
            fill(client);
            drain(target);
        }
    }
    // Now the targets read nothing. The buffers of the kernel fill first, then those of the exit.
    let used = || exit.status()["carriers"][0]["receiveBudgetUsed"].as_u64();
    let mut last = None;
    until("the exit takes no more", || {
        for (client, _) in &streams {
            fill(client);
        }
        let now = used();
        let is_full = now.is_some_and(|now| now > 0) && now == last;
        last = now;
        is_full
    });
    assert_eq!(group.killed(), 0);
    // Half of the limit, for the four sessions that an exit expects.
    assert!(last <= Some(LIMIT / 2 / 4), "{last:?}");
    assert_eq!(exit.status()["streams"]["open"], STREAMS);
    drop(entry);
}
