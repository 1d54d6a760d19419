//! The file under the handle: made with the right mode, on a local disk, and still the same one as when it was opened.
//!
//! Nothing here ever opens the database file of a running handle: closing any descriptor of it would drop the POSIX
//! locks that SQLite holds in this process (SQLite's "How To Corrupt", 2.2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use timertask_core::seam::StoreErrorKind;

use crate::error::Fault;

/// One opener at a time in this process; see [`create_if_missing`].
static CREATING: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Makes an empty file that only its owner can read, if there is none. SQLite gives its log and index the same mode.
///
/// The new file is closed before SQLite opens it, and no other handle of this process can have it open by then: that is
/// what the lock is for.
pub(crate) fn create_if_missing(path: &Path) -> Result<(), Fault> {
    let _alone = CREATING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => {
            let directory = path.parent().unwrap_or(Path::new("."));
            let what = match e.kind() {
                io::ErrorKind::NotFound if !directory.exists() => {
                    format!("the directory {} does not exist", directory.display())
                }
                _ => "cannot create the file".to_owned(),
            };
            return Err(Fault::new(Fault::from(io::Error::from(e.kind())).kind(), what).with_cause(e));
        }
    }
    let found = fs::metadata(path)?;
    if found.is_dir() {
        return Err(Fault::new(StoreErrorKind::Misconfigured, "the path is a directory; give the path of a file"));
    }
    if !found.is_file() {
        return Err(Fault::new(StoreErrorKind::Misconfigured, "the path is not a regular file"));
    }
    warn_of_links(path, &found);
    Ok(())
}

#[cfg(unix)]
fn warn_of_links(path: &Path, found: &fs::Metadata) {
    if std::os::unix::fs::MetadataExt::nlink(found) > 1 {
        log::warn!(target: "timertask::store", "{} has a second name (hard link); each name has a log of its own, so \
            opening it by both destroys it", path.display());
    }
}

#[cfg(not(unix))]
fn warn_of_links(_: &Path, _: &fs::Metadata) {}

/// Which files the handle works on: the database, its log and the log's index.
///
/// While a connection is open SQLite deletes none of them. A file deleted or replaced by somebody else would be written
/// to without any error, while the next process starts from an empty one: both would grant the same slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity([Option<FileId>; 3]);

type FileId = (u64, u64);

impl Identity {
    /// Whether the database stands at `path`, by whatever name.
    pub(crate) fn is_database(&self, path: &Path) -> bool {
        file_id(path) == self.0[0]
    }
}

/// The paths of the three files.
#[derive(Clone, Debug)]
pub(crate) struct Paths([PathBuf; 3]);

impl Paths {
    pub(crate) fn new(database: PathBuf) -> Self {
        let with = |suffix: &str| {
            let mut name = database.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        };
        let (log, index) = (with("-wal"), with("-shm"));
        Self([database, log, index])
    }

    pub(crate) fn database(&self) -> &Path {
        &self.0[0]
    }

    /// What stands at the paths now.
    pub(crate) fn identity(&self) -> Identity {
        Identity([file_id(&self.0[0]), file_id(&self.0[1]), file_id(&self.0[2])])
    }

    /// That what stands at the paths is still `opened`.
    pub(crate) fn verify(&self, opened: &Identity) -> Result<(), Fault> {
        for (path, opened) in self.0.iter().zip(&opened.0) {
            let found = file_id(path);
            if found != *opened {
                let how = if found.is_none() { "deleted" } else { "replaced by another" };
                let what = format!("{} was {how} while it was open", path.display());
                return Err(Fault::new(StoreErrorKind::Replaced, what));
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Elsewhere an open database can be neither deleted nor replaced.
#[cfg(not(unix))]
fn file_id(_: &Path) -> Option<FileId> {
    None
}

/// Refuses a file system that other hosts share, or that a program serves: their locks cannot be relied on, and the
/// log's index is memory that only one host sees.
pub(crate) fn refuse_network_file_system(path: &Path) -> Result<(), Fault> {
    // Linux only; elsewhere there is no such table, and the documentation's word has to do.
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    // A link may lead elsewhere; of a file that does not exist yet the directory counts.
    let directory = path.parent().unwrap_or(Path::new("/"));
    let place = fs::canonicalize(path).or_else(|_| fs::canonicalize(directory)).unwrap_or_else(|_| path.to_owned());
    match mounted_as(&table, &place) {
        Some(name) if is_shared(&name) => Err(Fault::new(
            StoreErrorKind::Misconfigured,
            format!(
                "{} lies on a file system of type {name}, where locks between processes cannot be relied on; use a \
                 local disk, or allow it with `allow_network_file_system`",
                path.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// The type of the file system that `place` lies on, by the table of mounts: of the mount points above it the longest,
/// and of several mounts on one point the last.
fn mounted_as(table: &str, place: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in table.lines() {
        let Some((mount, source)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(name)) = (mount.split(' ').nth(4), source.split(' ').next()) else { continue };
        let point = unescape(point);
        if place.starts_with(&point) && best.is_none_or(|(longest, _)| point.len() >= longest) {
            best = Some((point.len(), name));
        }
    }
    best.map(|(_, name)| name.to_owned())
}

/// The kernel writes blanks, tabs, line feeds and backslashes of a mount point in octal.
fn unescape(point: &str) -> String {
    point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn is_shared(name: &str) -> bool {
    const SHARED: [&str; 18] = [
        "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "virtiofs", "fuse", "fuseblk", "ceph", "lustre", "afs",
        "coda", "gfs2", "ocfs2", "vboxsf", "vmhgfs",
    ];
    SHARED.contains(&name) || name.starts_with("fuse.")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 0:21 / / rw,relatime - ext4 /dev/vda rw\n\
23 22 0:22 / /data rw shared:1 - nfs4 server:/x rw\n\
24 23 0:23 / /data/local rw master:2 - xfs /dev/vdb rw\n\
25 22 0:24 / /mnt/two\\040words rw - fuse.sshfs me@host: rw\n\
26 22 0:25 / /stacked rw - ext4 /dev/vdc rw\n\
27 26 0:26 / /stacked rw - cifs //server/share rw\n\
a line that is none\n";

    #[test]
    fn the_longest_and_last_mount_decides() {
        for (directory, expected) in [
            ("/srv", "ext4"),
            ("/data", "nfs4"),
            ("/data/sub/dir", "nfs4"),
            ("/database", "ext4"),
            ("/data/local/x", "xfs"),
            ("/mnt/two words/x", "fuse.sshfs"),
            ("/stacked", "cifs"),
        ] {
            assert_eq!(mounted_as(TABLE, Path::new(directory)).as_deref(), Some(expected), "{directory}");
        }
    }

    #[test]
    fn shared_and_local_types() {
        for name in ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "fuse.s3fs", "fuse"] {
            assert!(is_shared(name), "{name}");
        }
        for name in ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", "vfat"] {
            assert!(!is_shared(name), "{name}");
        }
    }
}
