//! The clusters of this machine: `mullion list`, `mullion down`, `mullion kubeconfig`, and the directories of clusters.
//!
//! [`running`] finds running clusters, [`keep`] has the state on disk, [`other_directories`] remembers other directories, [`status`] queries a
//! cluster, [`snapshot`] copies one, and [`delete`] deletes one. A named cluster has the directory of that name below the state directory,
//! a cluster with `--data-dir` has that one, and a cluster with neither is in memory only.

pub(crate) mod delete;
pub(crate) mod keep;
mod other_directories;
pub(crate) mod running;
pub(crate) mod snapshot;
pub(crate) mod status;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    cli::Output,
    failure::{Failure, file_error},
    kubeconfig, out,
};

use self::running::Record;

/// The time that a cluster may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// The interval between checks whether a cluster has stopped.
const STOP_CHECK: Duration = Duration::from_millis(20);
/// The maximum length of a name.
const MAX_NAME: usize = 63;

/// Returns the directory of the named clusters.
fn named_root() -> Result<PathBuf, Failure> {
    Ok(kubeconfig::state_dir()?.join("mullion").join("clusters"))
}

/// The cluster that the command line names.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NamedCluster {
    /// The cluster's name, if the user gave it.
    pub(crate) name: Option<String>,
    /// The cluster's directory, if the user gave it.
    pub(crate) directory: Option<PathBuf>,
}

impl NamedCluster {
    /// Returns the chosen directory; `None` if nothing is to be stored.
    pub(crate) fn directory(&self) -> Result<Option<PathBuf>, Failure> {
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        match (&self.directory, &self.name) {
            (Some(directory), _) => Ok(Some(absolute(directory))),
            (None, Some(name)) => Ok(Some(named_root()?.join(name))),
            (None, None) => Ok(None),
        }
    }

    /// Returns the running clusters that match. If no cluster has the name, it may be a process id or a port, because clusters in memory
    /// can have equal names.
    fn matching(&self, mut running: Vec<Record>) -> Vec<Record> {
        if let Some(directory) = &self.directory {
            let directory = absolute(directory);
            // The directory alone decides: names need not be unique, but a directory belongs to one cluster.
            running.retain(|record| record.directory.as_ref() == Some(&directory));
            return running;
        }
        let Some(name) = &self.name else {
            return running;
        };
        // A cluster of this name takes precedence over one with this process id or port.
        let is_name = running.iter().any(|record| record.name == *name)
            || kept(&running).iter().any(|kept| kept.name == *name);
        running.retain(|record| {
            if is_name {
                record.name == *name
            } else {
                record.pid.to_string() == *name || record.port() == Some(name.as_str())
            }
        });
        running
    }

    /// Returns the name of the cluster for messages.
    fn title(&self) -> String {
        match (&self.directory, &self.name) {
            (Some(directory), _) => format!("cluster in {}", directory.display()),
            (None, Some(name)) => format!("cluster {name}"),
            (None, None) => "cluster".to_owned(),
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Checks that a name is valid as a directory name on every system, and in a kubeconfig.
fn check_name(name: &str) -> Result<(), Failure> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = name.len() <= MAX_NAME
        && name.chars().all(good)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !name.ends_with('-');
    if fits {
        return Ok(());
    }
    Err(Failure::input(format!(
        "--name {name:?}: a name has at most {MAX_NAME} lower-case letters, digits and -, and begins and ends with a letter or digit"
    ))
    .hint("--name demo"))
}

/// Runs `mullion list`.
pub(crate) fn list(output: Output) -> Result<(), Failure> {
    let running = running::all();
    let stopped = kept(&running);
    match output {
        Output::Json => {
            let mut all: Vec<Value> = running.iter().map(as_json).collect();
            all.extend(stopped.iter().map(
                |kept| json!({"name": kept.name, "state": "stopped", "directory": kept.directory}),
            ));
            out::line(&Value::from(all).to_string());
        }
        Output::Text if running.is_empty() && stopped.is_empty() => {
            out::line("No cluster is running, and none is kept. `mullion up` starts one.");
        }
        Output::Text => out::line(&table(&running, &stopped, Timestamp::now())),
    }
    Ok(())
}

fn as_json(record: &Record) -> Value {
    json!({
        "name": record.name, "state": "running", "server": record.server, "pid": record.pid,
        "kubeconfig": record.kubeconfig, "directory": record.directory, "started": record.started,
    })
}

fn table(running: &[Record], stopped: &[StoredCluster], now: Timestamp) -> String {
    let mut rows = vec![["NAME", "STATE", "API", "PID", "AGE", "KEPT IN"].map(str::to_owned)];
    rows.extend(running.iter().map(|record| {
        [
            record.name.clone(),
            "running".to_owned(),
            record.server.clone(),
            record.pid.to_string(),
            age(now.duration_since(record.started)),
            match &record.directory {
                Some(directory) => directory.display().to_string(),
                None => "memory".to_owned(),
            },
        ]
    }));
    rows.extend(stopped.iter().map(|kept| {
        let [none, nowhere, never] = ["-"; 3].map(str::to_owned);
        let place = kept.directory.display().to_string();
        [
            kept.name.clone(),
            "stopped".to_owned(),
            none,
            nowhere,
            never,
            place,
        ]
    }));
    let widths: [usize; 6] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].len());
        lengths.max().unwrap_or(0)
    });
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        line.join("   ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Formats an age like `kubectl get`, in its largest unit.
pub(crate) fn age(age: SignedDuration) -> String {
    match age.as_secs().max(0) {
        seconds @ ..120 => format!("{seconds}s"),
        seconds @ ..7_200 => format!("{}m", seconds / 60),
        seconds @ ..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Returns the only running cluster that matches; `None` if there is none.
///
/// # Errors
/// Several match. `command` is the command that must name one of them.
fn one_running(chosen: &NamedCluster, command: &str) -> Result<Option<Record>, Failure> {
    let mut found = chosen.matching(running::all());
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(several(&found, command)),
    }
}

/// Returns the error about several matching clusters, with their differences.
fn several(found: &[Record], command: &str) -> Failure {
    let mut names: Vec<&str> = found.iter().map(|record| &*record.name).collect();
    names.sort_unstable();
    names.dedup();
    let all = found.iter().map(|record| {
        let (name, pid, server) = (&record.name, record.pid, &record.server);
        format!("{name} (process {pid}, {server})")
    });
    let all: Vec<String> = all.collect();
    let failure = Failure::input(format!(
        "{} clusters are running: {}",
        found.len(),
        all.join(", ")
    ));
    failure.hint(if names.len() == found.len() {
        format!("say which one: {command} {}", names[0])
    } else {
        format!(
            "say which one by its process or port: {command} {}",
            found[0].pid
        )
    })
}

/// Returns the directory of another cluster with this name, running or not.
pub(crate) fn other_of_name(name: &str, directory: Option<&Path>) -> Option<PathBuf> {
    let mut all = kept(&[]).into_iter();
    let other = all.find(|kept| kept.name == name && Some(&*kept.directory) != directory);
    other.map(|kept| kept.directory)
}

/// A cluster on disk.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct StoredCluster {
    name: String,
    directory: PathBuf,
}

/// Returns all clusters on disk that are not running, by name.
fn kept(running: &[Record]) -> Vec<StoredCluster> {
    let named = named_root().ok().into_iter();
    let entries = named.flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten());
    let named = entries.map(|entry| StoredCluster {
        name: entry.file_name().to_string_lossy().into_owned(),
        directory: entry.path(),
    });
    let named = named.filter(|kept| keep::is_kept(&kept.directory));
    let elsewhere = other_directories::all().into_iter();
    let elsewhere =
        elsewhere.map(
            |other_directories::ClusterDirectory { name, directory }| StoredCluster {
                name,
                directory,
            },
        );
    let mut all: Vec<StoredCluster> = named.chain(elsewhere).collect();
    all.retain(|kept| {
        let mut directories = running.iter().map(|record| record.directory.as_deref());
        !directories.any(|running| running == Some(&*kept.directory))
    });
    all.sort();
    all
}

/// Returns the only stopped cluster that matches; `None` if there is none.
///
/// # Errors
/// Several match. `command` is the command that must name one of them.
fn one_kept(chosen: &NamedCluster, command: &str) -> Result<Option<StoredCluster>, Failure> {
    if let Some(directory) = &chosen.directory {
        let directory = absolute(directory);
        let all = kept(&[]).into_iter();
        let known = all.into_iter().find(|kept| kept.directory == directory);
        let unknown = || StoredCluster {
            name: "mullion".to_owned(),
            directory: directory.clone(),
        };
        return Ok(keep::is_kept(&directory).then(|| known.unwrap_or_else(unknown)));
    }
    let mut found = kept(&running::all());
    found.retain(|kept| chosen.name.as_ref().is_none_or(|name| *name == kept.name));
    match found.len() {
        0 | 1 => Ok(found.pop()),
        several => {
            let places = found
                .iter()
                .map(|kept| kept.directory.display().to_string());
            let places: Vec<String> = places.collect();
            let places = places.join(", ");
            Err(
                Failure::input(format!("{several} clusters are kept: {places}")).hint(format!(
                    "say which one: {command} --data-dir DIR; `mullion list` shows them"
                )),
            )
        }
    }
}

/// Returns the error that no cluster matches.
fn no_such(chosen: &NamedCluster) -> Failure {
    let failure = match (&chosen.directory, &chosen.name) {
        (Some(directory), _) => format!("there is no cluster in {}", directory.display()),
        (None, Some(name)) => format!("there is no cluster {name}"),
        (None, None) => "no cluster is running, and none is kept".to_owned(),
    };
    Failure::run(failure).hint("`mullion list` shows the clusters there are")
}

/// Returns the flag that names a kept cluster.
fn flag(kept: &StoredCluster) -> String {
    if named_root().is_ok_and(|root| root.join(&kept.name) == kept.directory) {
        format!("--name {}", kept.name)
    } else {
        format!("--data-dir {}", crate::up::quoted(&kept.directory))
    }
}

/// Runs `mullion down`.
pub(crate) async fn down(chosen: NamedCluster) -> Result<(), Failure> {
    let Some(record) = one_running(&chosen, "mullion down")? else {
        let none = chosen.title();
        return Err(
            Failure::run(format!("no {none} is running")).hint("`mullion list` shows what is")
        );
    };
    record.terminate()?;
    let stopped = async {
        while record.is_running() {
            tokio::time::sleep(STOP_CHECK).await;
        }
    };
    if tokio::time::timeout(STOP_PATIENCE, stopped).await.is_err() {
        return Err(Failure::run(format!(
            "cluster {} (process {}) was told to stop and is still running after {} s",
            record.name,
            record.pid,
            STOP_PATIENCE.as_secs()
        ))
        .hint(format!("end the process: kill -9 {}", record.pid)));
    }
    out::line(&match &record.directory {
        Some(directory) => format!(
            "cluster {} is stopped and kept in {}",
            record.name,
            directory.display()
        ),
        None => format!("cluster {} is stopped", record.name),
    });
    Ok(())
}

/// Runs `mullion kubeconfig`: writes to stdout, or to a file that only its owner may read.
pub(crate) fn give_kubeconfig(chosen: NamedCluster, file: Option<&Path>) -> Result<(), Failure> {
    if let Some(record) = one_running(&chosen, "mullion kubeconfig")? {
        match file {
            Some(file) => {
                kubeconfig::write_alone(file, &record.server, &record.access)?;
                let path = crate::up::quoted(&absolute(file));
                out::line(&format!("export KUBECONFIG={path}"));
            }
            None => out::line(kubeconfig::yaml(&record.access)?.trim_end()),
        }
        return Ok(());
    }
    Err(match one_kept(&chosen, "mullion kubeconfig")? {
        Some(kept) => Failure::run(format!("cluster {} is not running", kept.name))
            .hint(format!("start it: mullion up {}", flag(&kept))),
        None => no_such(&chosen),
    })
}

/// Describes a failed operation on a file.
fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!(
        "{} cannot be {what}: {}",
        path.display(),
        file_error(error)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_name_of_a_directory_and_of_a_context() {
        for name in ["demo", "a", "shop-2"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a/b", "..", "a.b", &"a".repeat(64)] {
            assert_eq!(check_name(name).map_err(|f| f.code()), Err(2), "{name}");
        }
    }

    #[test]
    fn the_list_shows_what_runs_and_what_is_kept() {
        let now = Timestamp::from_second(1_790_000_000).expect("a valid time");
        let record = |name: &str, seconds, directory: Option<&str>| Record {
            name: name.into(),
            pid: 4711,
            server: "https://127.0.0.1:6443".into(),
            kubeconfig: None,
            directory: directory.map(PathBuf::from),
            started: now - SignedDuration::from_secs(seconds),
            log: None,
            access: Value::Null,
        };
        let running = [
            record("mullion", 12, None),
            record("shop", 9_000, Some("/var/shop")),
        ];
        let stopped = [StoredCluster {
            name: "old".to_owned(),
            directory: PathBuf::from("/home/ann/.local/state/mullion/clusters/old"),
        }];
        insta::assert_snapshot!(table(&running, &stopped, now));
    }
}
