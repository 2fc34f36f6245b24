//! The memory limit of the process's control group (cgroup), version 2 or 1.
//!
//! In a container this is the limit of the container, also if a LimitRange of the namespace has set
//! it. The limits of the groups above apply too, as far as the container sees them. (The standard
//! library reads the CPU limit, see [`std::thread::available_parallelism`].)

use std::path::{Path, PathBuf};

/// Where the memory controller may be mounted: version 2, version 2 beside version 1, version 1.
const MOUNTS: [(Version, &str); 3] = [
    (Version::Two, "sys/fs/cgroup"),
    (Version::Two, "sys/fs/cgroup/unified"),
    (Version::One, "sys/fs/cgroup/memory"),
];
/// A limit of at least this size is none. Version 1 has no other value for "no limit".
const NONE_FROM: u64 = 1 << 60;
/// Maximum number of groups above the process's group that are read.
const DEPTH_MAX: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The file with the limit.
    const fn file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }

    /// The path of the process's group in a line of `/proc/self/cgroup`, if the line is of this
    /// version.
    fn path_in(self, line: &str) -> Option<&str> {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_own = match self {
            Self::One => controllers.split(',').any(|name| name == "memory"),
            Self::Two => number == "0" && controllers.is_empty(),
        };
        is_own.then_some(path)
    }
}

/// The memory limit of this process in bytes. `None` if there is none, or if it cannot be read.
pub(crate) fn memory_limit() -> Option<u64> {
    memory_limit_below(Path::new("/"))
}

/// As [`memory_limit`], with another root directory.
fn memory_limit_below(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = MOUNTS.into_iter().flat_map(|(version, mount)| {
        let paths = groups.lines().filter_map(move |line| version.path_in(line));
        let mount = root.join(mount);
        paths.flat_map(move |path| {
            let groups = groups_of(&mount, path).into_iter();
            groups.filter_map(move |group| limit_in(&group.join(version.file())))
        })
    });
    limits.min()
}

/// The directories of the group `path` and of the groups above, up to `mount`. A container may see
/// its own group as `mount`, and `path` from the host's point of view.
fn groups_of(mount: &Path, path: &str) -> Vec<PathBuf> {
    let own = mount.join(path.trim_start_matches('/'));
    let above = own.ancestors().take(DEPTH_MAX);
    let mut groups: Vec<_> = above
        .take_while(|group| group.starts_with(mount))
        .map(Path::to_owned)
        .collect();
    groups.push(mount.to_owned());
    groups
}

fn limit_in(file: &Path) -> Option<u64> {
    // The text is `max` if version 2 has no limit.
    let limit: u64 = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit < NONE_FROM).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit with these files. The first is `/proc/self/cgroup`.
    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let all = [("proc/self/cgroup", groups)];
        for (path, text) in all.iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        memory_limit_below(root.path())
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_container_sees_its_own_limit_in_both_versions() {
        // Version 2 with a namespace of its own, as containerd, CRI-O and Docker have it.
        let two = [("sys/fs/cgroup/memory.max", "67108864\n")];
        assert_eq!(limit("0::/\n", &two), Some(64 * MIB));
        // Version 1: the group's path is the host's, and the mount is the container's own group.
        let one = [("sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n")];
        let path = "5:cpu,cpuacct:/x\n4:memory:/kubepods/burstable/pod1/abc\n0::/\n";
        assert_eq!(limit(path, &one), Some(64 * MIB));
        // Both versions, each with its controllers.
        let path = "4:memory:/\n0::/x\n";
        assert_eq!(limit(path, &one), Some(64 * MIB));
    }

    #[test]
    fn the_limit_of_a_group_above_counts_if_it_is_lower() {
        let slices = [
            ("sys/fs/cgroup/a.slice/memory.max", "1048576"),
            ("sys/fs/cgroup/a.slice/b.service/memory.max", "max"),
            ("sys/fs/cgroup/other/memory.max", "1"),
        ];
        assert_eq!(limit("0::/a.slice/b.service\n", &slices), Some(MIB));
        let own = [
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2097152"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712",
            ),
        ];
        assert_eq!(limit("4:memory:/a\n", &own), Some(2 * MIB));
    }

    #[test]
    fn without_a_limit_there_is_none() {
        let none = [("sys/fs/cgroup/memory.max", "max\n")];
        assert_eq!(limit("0::/\n", &none), None);
        let none = [(
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        )];
        assert_eq!(limit("4:memory:/\n", &none), None);
        for odd in ["", "0:", "x:y:z", "0::/../..\n"] {
            assert_eq!(limit(odd, &[]), None, "{odd}");
        }
        let odd = [("sys/fs/cgroup/memory.max", "many")];
        assert_eq!(limit("0::/\n", &odd), None);
    }
}
