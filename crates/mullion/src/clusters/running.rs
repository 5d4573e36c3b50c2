//! Finds running clusters: each writes a record and holds a lock next to it while its process lives.
//!
//! The system releases the lock of a process that dies in any way, so a record without a lock is stale, and any process that finds it
//! removes it.

use std::{
    fmt,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::other_directories;
use crate::{failure::Failure, files, input, kubeconfig};

/// A running cluster.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    /// The cluster's name.
    pub(crate) name: String,
    /// The id of the cluster's process.
    pub(crate) pid: u32,
    /// The URL of the API, `https://127.0.0.1:6443`.
    pub(crate) server: String,
    /// The kubeconfig that was written for the cluster.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The directory; `None` if the cluster is in memory only.
    pub(crate) directory: Option<PathBuf>,
    /// The time at which the cluster was started.
    pub(crate) started: Timestamp,
    /// The log file, if the cluster runs in the background.
    #[serde(default)]
    pub(crate) log: Option<PathBuf>,
    /// A kubeconfig for this cluster only, whatever happens to the file.
    #[serde(default)]
    pub(crate) access: Value,
}

/// A record that exists as long as this value.
#[derive(Debug)]
pub(crate) struct Announced {
    record: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Files that cannot be removed now are removed by the next process that looks for clusters.
        let _ = fs::remove_file(&self.record);
        let _ = fs::remove_file(&self.lock);
    }
}

fn place() -> Option<PathBuf> {
    Some(
        kubeconfig::state_dir()
            .ok()?
            .join("mullion")
            .join("running"),
    )
}

fn paths(place: &Path, pid: u32) -> (PathBuf, PathBuf) {
    (
        place.join(format!("{pid}.json")),
        place.join(format!("{pid}.lock")),
    )
}

/// Writes the record of a cluster. If that fails, the cluster works but cannot be found.
pub(crate) fn announce(record: &Record) -> Option<Announced> {
    if let Some(directory) = &record.directory {
        other_directories::remember(&record.name, directory);
    }
    let announced = place().map(|place| try_announce(&place, record));
    match announced? {
        Ok(announced) => Some(announced),
        Err(error) => {
            tracing::warn!(%error, "`mullion list` and `mullion down` will not know this cluster");
            None
        }
    }
}

fn try_announce(place: &Path, record: &Record) -> io::Result<Announced> {
    fs::create_dir_all(place)?;
    let (path, lock) = paths(place, record.pid);
    let held = File::create(&lock)?;
    held.try_lock()?;
    let text = serde_json::to_vec(record)?;
    // The record has a private key, so only the user may read the file.
    files::private(&path).and_then(|mut file| file.write_all(&text))?;
    Ok(Announced {
        record: path,
        lock,
        _held: held,
    })
}

/// Returns all running clusters, by name.
pub(crate) fn all() -> Vec<Record> {
    let Some(place) = place() else {
        return Vec::new();
    };
    let mut found = all_in(&place);
    found.sort_by(|a, b| (&a.name, a.started).cmp(&(&b.name, b.started)));
    found
}

fn all_in(place: &Path) -> Vec<Record> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let lock = path.with_extension("lock");
        // A lock that nobody holds belongs to a process that ended without removing its files.
        if !is_held(&lock) {
            let _ = fs::remove_file(&path);
            let _ = fs::remove_file(&lock);
            continue;
        }
        let record = fs::read(&path)
            .ok()
            .and_then(|text| input::json(&text).ok());
        found.extend::<Option<Record>>(record);
    }
    found
}

/// Returns the running cluster in a directory.
pub(crate) fn in_directory(directory: &Path) -> Option<Record> {
    let mut all = all().into_iter();
    all.find(|record| record.directory.as_deref() == Some(directory))
}

/// Returns whether a process holds a lock.
fn is_held(lock: &Path) -> bool {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(lock) else {
        return false;
    };
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// The reason why a cluster's kubeconfig is unusable.
#[derive(Debug)]
pub(crate) enum AccessError {
    /// It has another form.
    Form(serde_json::Error),
    /// It names no usable user or server.
    Kubeconfig(KubeconfigError),
    /// No client can be made from it.
    Client(kube::Error),
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessError::Form(error) => write!(f, "{error}"),
            AccessError::Kubeconfig(error) => write!(f, "{error}"),
            AccessError::Client(error) => write!(f, "{error}"),
        }
    }
}

impl Record {
    /// Returns the port of the cluster's API.
    pub(crate) fn port(&self) -> Option<&str> {
        self.server.rsplit_once(':').map(|(_, port)| port)
    }

    /// Returns a client with the administrator's rights.
    ///
    /// # Errors
    /// Its kubeconfig is unusable.
    pub(crate) async fn client(&self) -> Result<Client, AccessError> {
        let config = Kubeconfig::deserialize(&self.access).map_err(AccessError::Form)?;
        let options = KubeConfigOptions::default();
        let config = kubeconfig::client_config(config, &options).await;
        let config = config.map_err(AccessError::Kubeconfig)?;
        Client::try_from(config).map_err(AccessError::Client)
    }

    /// Returns whether the cluster is still running.
    pub(crate) fn is_running(&self) -> bool {
        place().is_some_and(|place| is_held(&paths(&place, self.pid).1))
    }

    /// Sends the process a signal to stop.
    #[cfg(unix)]
    pub(crate) fn terminate(&self) -> Result<(), Failure> {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let sent = pid.map(|pid| kill_process(pid, Signal::TERM));
        match sent {
            Some(Ok(())) => Ok(()),
            // The process has ended already.
            Some(Err(rustix::io::Errno::SRCH)) | None => Ok(()),
            Some(Err(error)) => Err(Failure::run(format!(
                "cluster {} (process {}) cannot be told to stop: {error}",
                self.name, self.pid
            ))
            .hint("stop it as the user who started it, with Ctrl-C where it runs")),
        }
    }

    /// Sends the process a signal to stop.
    #[cfg(not(unix))]
    pub(crate) fn terminate(&self) -> Result<(), Failure> {
        Err(Failure::input(format!(
            "cluster {} (process {}) cannot be stopped from here on this system",
            self.name, self.pid
        ))
        .hint("press Ctrl-C where it runs"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_there_as_long_as_its_process() {
        let place = tempfile::tempdir().expect("a directory");
        let record = Record {
            name: "demo".into(),
            pid: 4711,
            server: "https://127.0.0.1:1".into(),
            kubeconfig: None,
            directory: None,
            started: Timestamp::UNIX_EPOCH,
            log: None,
            access: Value::Null,
        };
        let announced = try_announce(place.path(), &record).expect("it can be written");
        let found = all_in(place.path());
        assert_eq!((found.len(), &*found[0].name), (1, "demo"));
        drop(announced);
        assert!(all_in(place.path()).is_empty());
        // A process that was killed leaves its files behind, but not its lock.
        let (path, lock) = paths(place.path(), 1);
        fs::write(&path, serde_json::to_vec(&record).expect("JSON")).expect("writable");
        fs::write(&lock, "").expect("writable");
        assert!(all_in(place.path()).is_empty());
        let left = fs::read_dir(place.path()).expect("readable").count();
        assert_eq!(left, 0);
    }
}
