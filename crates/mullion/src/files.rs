//! Replaces files: atomically for concurrent readers, through symbolic links, and only regular files.
//!
//! A rename replaces whatever has the name, even a device such as `/dev/full`, so [`replaceable`] is checked before every replacement.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Returns the path of the file to replace: the path itself, or the target of its symbolic links.
///
/// # Errors
/// There is a directory, a device, a pipe or a socket, or the path cannot be examined.
pub(crate) fn replaceable(path: &Path) -> io::Result<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(led_to(path)),
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) => {
            let what = special(&found);
            Err(io::Error::other(format!("it is a {what}, not a file")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(led_to(path)),
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn special(found: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = found.file_type();
    match (kind.is_fifo(), kind.is_socket()) {
        (true, _) => "pipe",
        (_, true) => "socket",
        _ => "device",
    }
}

#[cfg(not(unix))]
fn special(_found: &Metadata) -> &'static str {
    "device"
}

/// Replaces a file, or creates one that only its owner may read. An existing file keeps its mode.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = &replaceable(path)?;
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let part = temporary_name(path)?;
    // Private until the old mode is known, because the content may be a key.
    let written = private(&part)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| match fs::metadata(path) {
            // Before the rename, so that the file never has another mode than the user chose.
            Ok(found) => fs::set_permissions(&part, found.permissions()),
            Err(_) => Ok(()),
        })
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // The file may not exist; either way the error of the write is reported.
        let _ = fs::remove_file(&part);
    }
    written
}

/// Returns the name of a temporary file that becomes the one at `path` when it is complete. It is in the same directory, and no other
/// process uses it.
pub(crate) fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it names no file"))?;
    let mut part = name.to_owned();
    part.push(format!(".{}", std::process::id()));
    Ok(path.with_file_name(part))
}

/// Opens a new or emptied file that only its owner may read.
pub(crate) fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Returns the target of a path through symbolic links, even if it does not exist yet.
fn led_to(path: &Path) -> PathBuf {
    /// The most links that are followed (Linux: MAXSYMLINKS).
    const LINKS: usize = 40;
    if let Ok(path) = fs::canonicalize(path) {
        return path;
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    path
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::{
        fs::{FileTypeExt, PermissionsExt, symlink},
        net::UnixListener,
    };

    use super::*;
    use crate::failure::file_error;

    #[test]
    fn only_regular_files_are_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let _listener = UnixListener::bind(at("socket")).expect("a socket");
        symlink("/dev/full", at("link")).expect("a link");
        let refused = |path: &Path| {
            let error = replace(path, b"x").expect_err("it is no file");
            file_error(&error)
        };
        assert_eq!(refused(&at("socket")), "it is a socket, not a file");
        assert_eq!(
            refused(Path::new("/dev/full")),
            "it is a device, not a file"
        );
        assert_eq!(refused(&at("link")), "it is a device, not a file");
        assert_eq!(refused(directory.path()), "it is a directory");
        let full = fs::metadata("/dev/full").expect("it is there");
        assert!(full.file_type().is_char_device());
        let left = fs::read_dir(directory.path()).expect("readable").count();
        assert_eq!(left, 2);
    }

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode_and_a_new_one_is_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("below").join("file");
        let mode = || {
            let found = fs::metadata(&path).expect("it is there");
            found.permissions().mode() & 0o777
        };
        replace(&path, b"one").expect("it can be written");
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("its owner may");
        replace(&path, b"two").expect("it can be written");
        assert_eq!(
            (mode(), fs::read(&path).expect("readable")),
            (0o640, b"two".to_vec())
        );
    }
}
