//! A link between two network namespaces that delivers each IP packet after a fixed delay.
//!
//! Python moves the packets between two TUN interfaces. The kernels at both ends see a slow path:
//! handshakes, acknowledgements and probes of TCP take as long as payload.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use super::namespace::Namespace;

/// Creates both interfaces, and moves the packets. The arguments are the names of the interfaces
/// and the delay in seconds.
const SCRIPT: &str = r#"
import collections, fcntl, os, select, struct, sys, time
def tun(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", name.encode(), 0x1001))
    return fd
ends, delay = [tun(name) for name in sys.argv[1:3]], float(sys.argv[3])
print("ready", flush=True)
held = collections.deque()
while True:
    wait = max(0, held[0][0] - time.monotonic()) if held else None
    for fd in select.select(ends, [], [], wait)[0]:
        other = ends[1] if fd == ends[0] else ends[0]
        held.append((time.monotonic() + delay, other, os.read(fd, 65536)))
    while held and held[0][0] <= time.monotonic():
        _, fd, packet = held.popleft()
        try:
            os.write(fd, packet)
        except OSError:
            pass
"#;

/// Ends with the value.
pub struct SlowLink {
    process: Child,
}

impl SlowLink {
    /// Joins two namespaces. `addresses` has the address of each end, with a prefix length.
    pub fn new(ends: [(&Namespace, &str); 2], one_way: Duration) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Relaxed);
        let name = |end| format!("sl{}x{number}{end}", std::process::id() % 100_000);
        let names = ["a", "b"].map(name);
        let mut process = Command::new("python3")
            .args(["-c", SCRIPT, &names[0], &names[1]])
            .arg(one_way.as_secs_f64().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is needed: apt-get install python3");
        let mut said = String::new();
        let output = process.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut said).unwrap();
        assert_eq!(said.trim(), "ready");
        for (name, (namespace, address)) in names.iter().zip(ends) {
            namespace.adopt(name, address);
        }
        Self { process }
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
