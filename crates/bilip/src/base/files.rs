//! Files that are written atomically, through links, and never in place of a device.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::base::error::{Error, Result};

/// Writes a file atomically: under a temporary name beside its place, from where it is moved there.
///
/// A symbolic link is followed: the file that it points to is replaced, and the link stays. Only a
/// regular file is ever replaced, and keeps its permissions; a device, a pipe or an open file
/// (`/dev/stdout`, `/dev/fd/3`) is written to. That the reader of a pipe has gone is not an error.
///
/// # Errors
/// When the operating system refuses, and on a chain of links that leads nowhere.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let io = |source| Error::Io {
        path: path.display().to_string(),
        source,
    };
    let (target, open) = destination(path).map_err(io)?;
    let existing = target.metadata().ok();
    if open || existing.as_ref().is_some_and(|m| !m.is_file()) {
        // An open file is appended to: what others have written to it stays.
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&target)
            .map_err(io)?;
        return match file.write_all(bytes).and_then(|()| file.flush()) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(io),
        };
    }
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".bilip-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As for any new file; the umask takes its share.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder).map_err(io)?;
    file.write_all(bytes).map_err(io)?;
    if let Some(existing) = existing {
        file.as_file()
            .set_permissions(existing.permissions())
            .map_err(io)?;
    }
    file.as_file().sync_all().map_err(io)?;
    file.persist(&target).map_err(|e| io(e.error))?;
    Ok(())
}

/// Where a path leads once its links are followed, and whether that is a file which this process
/// has open.
fn destination(path: &Path) -> std::io::Result<(PathBuf, bool)> {
    let mut at = path.to_path_buf();
    // As many links as the system itself follows.
    for _ in 0..40 {
        // Links in /proc lead to open files by ways of their own; their names are no paths.
        if at.starts_with("/proc") || at.starts_with("/dev/fd") {
            return Ok((at, true));
        }
        match std::fs::read_link(&at) {
            Ok(next) => {
                at = match at.parent() {
                    Some(folder) => folder.join(next),
                    None => next,
                }
            }
            // Not a link, or not there yet.
            Err(_) => return Ok((at, false)),
        }
    }
    Err(std::io::Error::other("too many symbolic links"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn links_are_written_through_and_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("data")).unwrap();
        std::fs::write(at("data/real"), "old").unwrap();
        std::fs::set_permissions(at("data/real"), std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink("data/real", at("link")).unwrap();
        symlink("link", at("second")).unwrap();
        symlink("data/new", at("dangling")).unwrap();
        symlink("loop", at("loop")).unwrap();
        write_file(at("second"), b"new").unwrap();
        write_file(at("dangling"), b"fresh").unwrap();
        assert!(at("link").is_symlink() && at("second").is_symlink() && at("dangling").is_symlink());
        assert_eq!(std::fs::read(at("data/real")).unwrap(), b"new");
        assert_eq!(std::fs::read(at("data/new")).unwrap(), b"fresh");
        let mode = at("data/real").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "permissions are kept");
        assert!(write_file(at("loop"), b"never").is_err());
        assert!(at("loop").is_symlink());
        // Nothing temporary is left.
        assert_eq!(std::fs::read_dir(at("data")).unwrap().count(), 2);
    }

    #[test]
    fn devices_are_written_to_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("null");
        symlink("/dev/null", &link).unwrap();
        write_file(&link, b"gone").unwrap();
        write_file("/dev/null", b"gone").unwrap();
        assert!(link.is_symlink());
        use std::os::unix::fs::FileTypeExt;
        assert!(
            Path::new("/dev/null")
                .metadata()
                .unwrap()
                .file_type()
                .is_char_device()
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_open_file_is_appended_to_by_its_number() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"first ").unwrap();
        write_file(format!("/proc/self/fd/{}", file.as_raw_fd()), b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first second");
        // /dev/fd is a link to /proc/self/fd.
        write_file(format!("/dev/fd/{}", file.as_raw_fd()), b" third").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first second third");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
