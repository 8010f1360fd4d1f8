//! Memory that this process may still take.

use std::fs;
use std::path::Path;

use sysinfo::{MemoryRefreshKind, System};

/// Bytes that the system has available for new allocations, within the limits of the process's control groups; `None` where
/// the system does not tell.
pub fn available_memory() -> Option<usize> {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let free = Some(system.available_memory()).filter(|bytes| *bytes > 0);
    let left = free.into_iter().chain(left_in_groups(Path::new("/"))).min();
    left.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Where a version of control groups keeps its figures: a folder, its files of the limit and the use, and the lines of
/// `memory.stat` that count what the kernel drops when memory is short.
struct Groups {
    folder: &'static str,
    limit: &'static str,
    usage: &'static str,
    reclaimable: [&'static str; 2],
}

const V1: Groups = Groups {
    folder: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

const V2: Groups = Groups {
    folder: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

/// Bytes that the control groups of this process and those around them leave; `root` is `/`.
#[doc(hidden)]
pub fn left_in_groups(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let lefts = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let groups = match controllers {
            "" => V2,
            _ if controllers.split(',').any(|c| c == "memory") => V1,
            _ => return None,
        };
        // In a container the path may be the host's: what is mounted then is the container's own group.
        let folder = root.join(groups.folder);
        let inner = folder.join(path.trim_start_matches('/'));
        inner.ancestors().take_while(|f| f.starts_with(&folder)).filter_map(|f| groups.left(f)).min()
    });
    lefts.min()
}

impl Groups {
    fn left(&self, folder: &Path) -> Option<u64> {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let (limit, usage) = (number(self.limit)?, number(self.usage)?);
        let stat = read("memory.stat").unwrap_or_default();
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let counted = lines.filter(|(name, _)| self.reclaimable.contains(name));
        let reclaimable: u64 = counted.filter_map(|(_, n)| n.parse::<u64>().ok()).sum();
        Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
    }
}
