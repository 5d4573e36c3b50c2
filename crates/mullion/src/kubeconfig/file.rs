//! Kubeconfig files: reads them, writes them as a whole, and locks a user's file while its entries change.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{entries, unwritable};
use crate::{
    failure::{Failure, document_error, file_error},
    files,
};

/// The time for which another program may hold the lock of a file.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// The interval at which the lock is tried.
const LOCK_CHECK: Duration = Duration::from_millis(20);

/// The content of a kubeconfig file.
pub(super) struct KubeconfigContent {
    /// The parsed content.
    pub(super) config: Value,
    /// Whether the file is missing or empty.
    pub(super) is_blank: bool,
    /// Whether the file has comments, which Mullion never writes.
    pub(super) has_comments: bool,
}

/// Reads a kubeconfig; a missing or empty file has no entries.
///
/// # Errors
/// The file cannot be read, or is not a kubeconfig.
pub(super) fn read(path: &Path) -> Result<KubeconfigContent, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            return Err(Failure::input(format!(
                "kubeconfig {} cannot be read: {}",
                path.display(),
                file_error(&error)
            )));
        }
    };
    let no_kubeconfig = |why: &str| {
        Failure::input(format!(
            "{} is no kubeconfig, so nothing in it is changed: {why}",
            path.display()
        ))
    };
    let found = |config| KubeconfigContent {
        config,
        is_blank: text.trim().is_empty(),
        has_comments: text.lines().any(is_commented),
    };
    if text.trim().is_empty() {
        return Ok(found(json!({})));
    }
    let parsed: Value =
        serde_saphyr::from_str(&text).map_err(|error| no_kubeconfig(&document_error(&error)))?;
    match &parsed {
        Value::Null => Ok(found(json!({}))),
        Value::Object(config) => match unfit(config) {
            Some(why) => Err(no_kubeconfig(&why)),
            None => Ok(found(parsed)),
        },
        _ => Err(no_kubeconfig("it is not a map")),
    }
}

/// Returns whether a line is a comment, or ends in one. In a line with quotes, a `#` may be part of a text and does not count.
fn is_commented(line: &str) -> bool {
    let ends_in_one = || line.contains(" #") && !line.contains(['"', '\'']);
    line.trim_start().starts_with('#') || ends_in_one()
}

/// Returns the reason why a map is not a kubeconfig.
fn unfit(config: &serde_json::Map<String, Value>) -> Option<String> {
    let kind = config.get("kind").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| *kind != "Config") {
        return Some(format!("its kind is {kind}"));
    }
    let lists = ["clusters", "users", "contexts"].into_iter();
    let mut wrong = lists.filter(|list| {
        config
            .get(*list)
            .is_some_and(|value| !value.is_array() && !value.is_null())
    });
    wrong.next().map(|list| format!("its {list} are no list"))
}

/// Formats a kubeconfig as YAML.
///
/// # Errors
/// It cannot be written as YAML.
pub(crate) fn yaml(config: &Value) -> Result<String, Failure> {
    serde_saphyr::to_string(config)
        .map_err(|error| Failure::run(format!("the kubeconfig cannot be written as YAML: {error}")))
}

/// Writes a kubeconfig as a whole.
pub(super) fn write(path: &Path, config: &Value) -> Result<(), Failure> {
    files::replace(path, yaml(config)?.as_bytes())
        .map_err(|error| unwritable(path, &file_error(&error)))
}

/// What was removed from a kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Removed {
    /// A context with its cluster and user.
    Context,
    /// The whole file, which had no other entries.
    File,
}

/// Removes the entries of a cluster from a kubeconfig, and the file if it had no others. Entries without `mark` stay.
///
/// # Errors
/// The file cannot be read or written. A file that is missing or is not a kubeconfig has no entries, which is not an error.
pub(crate) fn remove(path: &Path, mark: &Value) -> Result<Option<Removed>, Failure> {
    if !path.is_file() {
        return Ok(None);
    }
    // The lock is held from the read to the write, so a change by kubectl in between is not lost.
    let _lock = Lock::take(path)?;
    let Ok(found) = read(path) else {
        return Ok(None);
    };
    let is_own = entries::foreign(&found).is_none();
    let mut config = found.config;
    if !entries::take_out(&mut config, mark) {
        return Ok(None);
    }
    if is_own && entries::is_empty_config(&config) {
        let path = files::replaceable(path);
        return path
            .and_then(fs::remove_file)
            .map(|()| Some(Removed::File))
            .map_err(|error| {
                Failure::run(format!(
                    "the kubeconfig cannot be removed: {}",
                    file_error(&error)
                ))
            });
    }
    write(path, &config).map(|()| Some(Removed::Context))
}

/// The lock of a kubeconfig, `PATH.lock`, which kubectl also takes when it changes a file.
pub(super) struct Lock(PathBuf);

impl Lock {
    /// Waits until no other program changes the file, up to a limit.
    ///
    /// # Errors
    /// Another program holds the lock, or its directory is not writable.
    pub(super) fn take(path: &Path) -> Result<Lock, Failure> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = PathBuf::from(name);
        let directory = lock.parent().map_or(Ok(()), fs::create_dir_all);
        directory.map_err(|error| unwritable(path, &file_error(&error)))?;
        let began = Instant::now();
        loop {
            // client-go locks in the same way: whoever creates the file has the lock (`lockFile`).
            let made = OpenOptions::new().write(true).create_new(true).open(&lock);
            match made {
                Ok(_) => return Ok(Lock(lock)),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(unwritable(path, &file_error(&error)));
                }
                Err(_) if began.elapsed() >= LOCK_PATIENCE => {
                    return Err(Failure::input(format!(
                        "kubeconfig {} is being changed by another program: {} is there",
                        path.display(),
                        lock.display()
                    ))
                    .hint(format!(
                        "try again; if no kubectl runs, remove it: rm {}",
                        lock.display()
                    )));
                }
                Err(_) => thread::sleep(LOCK_CHECK),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file may have been removed on purpose, so an error is ignored.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_or_a_wrong_list_is_no_kubeconfig() {
        let map = |value: Value| value.as_object().cloned().expect("a map");
        assert_eq!(
            unfit(&map(json!({"kind": "Pod"}))),
            Some("its kind is Pod".into())
        );
        assert_eq!(
            unfit(&map(json!({"contexts": "foo"}))),
            Some("its contexts are no list".into())
        );
        assert_eq!(unfit(&map(json!({"kind": "Config", "users": null}))), None);
    }

    #[test]
    fn a_file_that_another_program_changes_is_left_to_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("config");
        let held = Lock::take(&path).expect("it is free");
        let failure = Lock::take(&path).err().expect("it is held");
        assert_eq!(failure.code(), 2);
        drop(held);
        assert!(Lock::take(&path).is_ok());
        let left = fs::read_dir(directory.path()).expect("readable").count();
        assert_eq!(left, 0);
    }
}
