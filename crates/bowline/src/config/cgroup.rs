//! How much memory the operating system allows this process, if it is in a cgroup with a limit.

use std::path::{Path, PathBuf};

use bowline_env::Files;
use bowline_env::files::read_text;

/// The limit of the cgroup that we are in, or of the nearest one above it that has any.
pub fn memory_max(files: &dyn Files) -> Option<usize> {
    let ours = read_text(files, Path::new("/proc/self/cgroup")).ok()?;
    ours.lines()
        .filter_map(|line| folder_of(line, Path::new("/sys/fs/cgroup")))
        .filter_map(|folder| limit_of(files, &folder))
        .min()
}

/// Where the limits of a line of `/proc/self/cgroup` lie: `0::/path` of version 2, or `4:memory:/path` of version 1.
fn folder_of(line: &str, root: &Path) -> Option<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
    if controllers.is_empty() {
        return Some(root.join(path));
    }
    controllers.split(',').any(|name| name == "memory").then(|| root.join("memory").join(path))
}

/// In a container the path may be that of the host, and what counts is then at the root of what we see.
fn limit_of(files: &dyn Files, folder: &Path) -> Option<usize> {
    let limits = folder.ancestors().take_while(|folder| folder.starts_with("/sys/fs/cgroup"));
    limits
        .flat_map(|folder| ["memory.max", "memory.limit_in_bytes"].map(|file| folder.join(file)))
        .filter_map(|file| read_text(files, &file).ok()?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_where_their_limits_are() {
        let folder = |line| folder_of(line, Path::new("/sys/fs/cgroup"));
        assert_eq!(folder("0::/app.slice"), Some(PathBuf::from("/sys/fs/cgroup/app.slice")));
        assert_eq!(folder("4:memory:/docker/abc"), Some(PathBuf::from("/sys/fs/cgroup/memory/docker/abc")));
        assert_eq!(folder("3:cpu,memory:/a"), Some(PathBuf::from("/sys/fs/cgroup/memory/a")));
        assert_eq!((folder("2:cpu:/a"), folder("nonsense")), (None, None));
    }
}
